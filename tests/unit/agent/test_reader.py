from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from blink_persistent.agent import reader
from blink_persistent.agent.port import Region, Span
from blink_persistent.ring import STATUS, SlotState
from blink_persistent.testing.scripted_request import ScriptedRequest

LONG = ScriptedRequest(prompt=(5, 6, 7), max_tokens=60, ignore_eos=True)


def run_steps(machine: Any, count: int) -> None:
    """Let the engine end so many steps, with all that the scheduler does of them."""
    while count:
        machine.harness.run_pass()
        if machine.harness.flight is not None:
            machine.harness.finish_step()
            count -= 1
    machine.harness.run_pass()


def run(machine: Any, slots: tuple[int, ...], steps: int = 6) -> None:
    """Requests in these slots, far enough for each to have tokens in the mirror."""
    for slot in slots:
        machine.workers.submit(slot, LONG)
    machine.relay.turn()
    run_steps(machine, steps)
    machine.relay.turn()
    assert all(machine.workers.output(slot) for slot in slots)


def generated(machine: Any, slot: int) -> int:
    return int(machine.harness.status(machine.ring_slot(slot)).generated)


@pytest.fixture
def reads(machine: Any) -> list[list[Span]]:
    """The spans of each read."""
    seen: list[list[Span]] = []
    read = machine.port.read

    def note(spans: list[Span]) -> Any:
        seen.append(list(spans))
        return read(spans)

    machine.port.read = note
    return seen


def test_a_turn_is_one_read_of_the_statuses_in_use_and_one_of_what_they_count(
    machine: Any, reads: list[list[Span]]
) -> None:
    run(machine, (2, 3))
    machine.port.cheap_gap = 1 << 20
    run_steps(machine, 1)
    reads.clear()
    machine.relay.turn(with_header=False)
    statuses, tokens = reads
    assert statuses == [Span(Region.STATUS, 2 * STATUS.itemsize, 2 * STATUS.itemsize)]
    assert [span.region for span in tokens] == [Region.OUTPUTS]


def test_nothing_is_read_while_nothing_is_in_flight(machine: Any, reads: list[list[Span]]) -> None:
    machine.relay.turn(with_header=False)
    assert reads == []


def test_what_lies_between_is_read_over_and_left_alone(machine: Any) -> None:
    run(machine, (2, 3))
    machine.port.cheap_gap = 1 << 20
    outputs = machine.relay.mirror.ring.outputs[0]
    between = 3 * machine.shape.output_words - 1
    outputs[between] = -7
    run_steps(machine, 1)
    machine.relay.turn()
    assert outputs[between] == -7
    expected = LONG.answer(machine.shape).tokens
    for slot in (2, 3):
        assert machine.workers.output(slot) == expected[: generated(machine, slot)]


def test_more_than_a_read_can_bring_comes_in_several(machine: Any, reads: list[list[Span]]) -> None:
    run(machine, (2, 3))
    run_steps(machine, 12)
    machine.port.longest_read = 2 * STATUS.itemsize
    reads.clear()
    machine.relay.turn(with_header=False)
    assert len(reads) > 3
    assert all(sum(span.length for span in spans) <= 32 for spans in reads)
    expected = LONG.answer(machine.shape).tokens
    for slot in (2, 3):
        assert machine.workers.output(slot) == expected[: generated(machine, slot)]


def test_tokens_are_in_the_mirror_before_the_status_that_counts_them(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = machine.relay.mirror.ring
    shown: list[int] = []

    class Watched:
        """The ring's words, looking at what is there when a status is published."""

        def __init__(self, atomic: Any) -> None:
            self._atomic = atomic

        def __getattr__(self, name: str) -> Callable[..., Any]:
            return getattr(self._atomic, name)  # type: ignore[no-any-return]

        def publish(self, slots: Any, statuses: Any) -> None:
            for slot, (_, word) in zip(slots.tolist(), statuses.tolist(), strict=True):
                start, count = int(ring.records["output_offset"][slot]), word & 0xFFFFFFFF
                tokens = tuple(ring.outputs[0][start : start + count].tolist())
                assert tokens == LONG.answer(machine.shape).tokens[:count]
                if word >> 32 & 0xFF == SlotState.DECODE_COMPLETED:
                    assert ring.timings["finished_ns"][slot] > 0
                shown.append(count)
            self._atomic.publish(slots, statuses)

    monkeypatch.setattr(ring, "atomic", Watched(ring.atomic))
    run(machine, (4,))
    while not shown or shown[-1] < LONG.max_tokens:
        run_steps(machine, 1)
        machine.relay.turn()
    assert shown == sorted(shown)


def test_a_first_token_comes_before_all_others(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(machine, (2,))
    machine.workers.submit(9, LONG)
    machine.relay.turn()
    while generated(machine, 9) == 0:
        run_steps(machine, 1)
    before = machine.workers.output(2)
    assert generated(machine, 2) > len(before)
    monkeypatch.setattr(reader, "_MOST_SLOTS", 1)
    machine.relay.turn()
    assert machine.workers.output(9)
    assert machine.workers.output(2) == before
    machine.relay.turn()
    assert len(machine.workers.output(2)) == generated(machine, 2)


def test_beyond_a_turns_most_slots_are_served_round_about(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = (2, 3, 4)
    run(machine, slots)
    monkeypatch.setattr(reader, "_MOST_SLOTS", 1)
    for _ in range(3):  # every slot has news before every turn, and none is passed over
        before = [len(machine.workers.output(slot)) for slot in slots]
        for _ in slots:
            run_steps(machine, 1)
            machine.relay.turn()
        after = [len(machine.workers.output(slot)) for slot in slots]
        assert all(one < other for one, other in zip(before, after, strict=True))


def test_only_ranges_with_news_are_rung(machine: Any) -> None:
    run(machine, (2, 300))
    run_steps(machine, 1)
    machine.relay.turn()
    machine.rung.clear()
    machine.relay.turn()
    assert machine.rung == []
    run_steps(machine, 1)
    machine.relay.turn()
    assert machine.rung == [0, 1]
    for slot in (2, 300):
        machine.workers.cancel(slot)
    machine.relay.turn()
    run_steps(machine, 1)
    machine.workers.release(300)
    machine.relay.turn()
    machine.rung.clear()
    machine.harness.settle()  # the first waits to be released, the second becomes EMPTY
    machine.relay.turn()
    assert machine.rung == [1]


def test_the_header_comes_when_asked_for(machine: Any) -> None:
    run(machine, (2,))
    header = machine.relay.mirror.ring.field
    run_steps(machine, 1)
    before = header("steps")
    machine.relay.turn(with_header=False)
    assert header("steps") == before
    machine.relay.turn(with_header=True)
    assert header("steps") == machine.harness.ring.field("steps") > before
    machine.harness.scheduler.close()
    machine.harness.run_pass()
    assert header("accepting") == 1
    machine.relay.turn()
    assert header("accepting") == 0
