from __future__ import annotations

import asyncio

import pytest

from blink_server.bench.dispatch import dispatch
from blink_server.bench.outcome import Outcome
from blink_server.bench.workload import Size, Workload
from blink_server.testing.virtual_time import VirtualTimeLoop, run_virtually

EXACT = 1e-4  # seconds: a virtual turn of the loop takes a microsecond


def workload(times: list[float]) -> Workload:
    return Workload([Size(1, 1)] * len(times), times, 100.0)


def test_no_request_of_an_open_loop_is_held_back() -> None:
    times = [0.0, 0.5, 0.5, 0.6, 7.25]

    async def main(loop: VirtualTimeLoop) -> list[Outcome]:
        async def send(number: int, scheduled: float) -> Outcome:
            outcome = Outcome(number, scheduled, 1, 1, sent=loop.time())
            await asyncio.sleep(1000)  # far longer than all arrivals take
            outcome.ended = loop.time()
            return outcome

        return await dispatch(workload(times), send, loop.time)

    outcomes = run_virtually(main)
    assert [one.number for one in outcomes] == [0, 1, 2, 3, 4]
    assert [one.sent for one in outcomes] == pytest.approx(times, abs=EXACT)
    assert [one.ended for one in outcomes] == pytest.approx([t + 1000 for t in times], abs=EXACT)


def test_a_generator_that_was_held_up_counts_from_the_schedule() -> None:
    """Coordinated omission: what it sends late is late, and no arrival is left out."""

    async def main(loop: VirtualTimeLoop) -> list[Outcome]:
        async def send(number: int, scheduled: float) -> Outcome:
            sent = loop.time()
            if number == 0:
                loop.now += 5.0  # the whole process stood still
            outcome = Outcome(number, scheduled, 1, 1, sent=sent)
            outcome.texts.append(loop.time())
            return outcome

        return await dispatch(workload([0.0, 1.0, 2.0, 8.0]), send, loop.time)

    outcomes = run_virtually(main)
    start = outcomes[0].scheduled
    assert [one.scheduled - start for one in outcomes] == pytest.approx([0, 1, 2, 8])
    waited = [one.time_to_first_token for one in outcomes]
    assert waited == pytest.approx([5.0, 4.0, 3.0, 0.0], abs=2e-3)


def test_a_closed_loop_keeps_so_many_in_flight() -> None:
    async def main(loop: VirtualTimeLoop) -> list[Outcome]:
        flying = 0

        async def send(number: int, scheduled: float) -> Outcome:
            nonlocal flying
            flying += 1
            assert flying <= 2
            outcome = Outcome(number, scheduled, 1, 1, sent=loop.time())
            await asyncio.sleep([3.0, 1.0, 1.0, 1.0][number])
            flying -= 1
            return outcome

        sizes = [Size(1, 1)] * 4
        return await dispatch(Workload(sizes, concurrency=2), send, loop.time)

    outcomes = run_virtually(main)
    assert [one.number for one in outcomes] == [0, 1, 2, 3]
    assert [one.sent for one in outcomes] == pytest.approx([0, 0, 1, 2], abs=EXACT)
    assert all(one.sent - one.scheduled < EXACT for one in outcomes)
