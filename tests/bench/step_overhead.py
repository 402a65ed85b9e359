"""What a decode step of 8 rows costs beside its engine, and what a claim costs: `make bench-steps`.

The scripted engine takes next to no time, so that what is left is the server's own. Medians and
99th percentiles, in microseconds, of rounds that take turns:

- scheduler: passes of the scheduler on one thread, from the end of a step until the next one is
  launched: tokens published, 4,096 slots looked at in part, the step's inputs filled;
- between two steps: what an engine thread waits from its `complete` to its next launch, with the
  scheduler on its own thread, as in a runner: the scheduler's work and two changes of thread. The
  engine stands still for this long. Threads of a busy machine wait for a core here;
- worker: a session's turn for one step, from the bell to the last of 8 consumers having its token.
  It runs beside the next step. Text and HTTP are not in it: worker_throughput.py measures them;
- scheduler and worker: the sum of both medians of a round;
- claim: one pass that finds one new request among 4,096 slots and queues it. In an idle ring it
  also admits it and launches its prefill; in a ring that fills up, until every slot is in use, a
  step runs meanwhile.

    python tests/bench/step_overhead.py [--rounds 5] [--steps 2000]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from blink_persistent.frontend.grant import Grant
from blink_persistent.frontend.session import Bells, RingSession
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.backend import GenerateRequest, SessionLimits, TokenEvent

sys.path.insert(0, str(Path(__file__).parent))
from machine import describe_machine
from measures import Measure, keep, report

ROWS, SLOTS = 8, 4096
RANGE = 256
PROMPT = (5, 6, 7)
WARM_UP = 50


def shape(steps: int) -> ScriptedShape:
    """A ring of `SLOTS` slots and contexts that hold `steps` steps."""
    context_length = steps + WARM_UP + 64
    return ScriptedShape(
        ranges=SLOTS // RANGE,
        slots_per_range=RANGE,
        max_rows=ROWS,
        context_length=context_length,
        block_size=16,
        block_count=2 * ROWS * (context_length // 16 + 1),
    )


@contextmanager
def decoding(steps: int) -> Iterator[ScriptedHarness]:
    """A harness whose `ROWS` rows have been prefilled and decode for `steps` steps and more."""
    request = ScriptedRequest(prompt=PROMPT, max_tokens=steps + WARM_UP + 32, ignore_eos=True)
    with ScriptedHarness(shape(steps), trace_capacity=0) as harness:
        for slot in range(ROWS):
            harness.submit(slot, 1, request)
        yield harness


def until_launched(harness: ScriptedHarness) -> None:
    while harness.flight is None:
        harness.run_pass()


def scheduler_times(steps: int) -> list[float]:
    """Microseconds from the end of each step until the next is launched, on one thread."""
    times = []
    with decoding(steps) as harness:
        for _ in range(WARM_UP):
            until_launched(harness)
            harness.finish_step()
        for _ in range(steps - WARM_UP):
            started = time.perf_counter_ns()
            until_launched(harness)
            times.append((time.perf_counter_ns() - started) / 1000)
            harness.finish_step()
    return times


def gap_times(steps: int) -> list[float]:
    """Microseconds that the engine thread stands still between two steps."""
    times: list[float] = []
    with decoding(steps) as harness:
        scheduler = harness.scheduler
        scheduler.start()
        ended = 0
        while len(times) < steps:
            launch = scheduler.next_launch(1000)
            begun = time.perf_counter_ns()
            if launch is None:
                raise RuntimeError("the scheduler launches nothing")
            if ended:
                times.append((begun - ended) / 1000)
            harness.scripted.step(*launch[1:])
            ended = time.perf_counter_ns()
            scheduler.complete(launch[1])
        stopping = threading.Thread(target=scheduler.stop)  # waits for the step in flight
        stopping.start()
        while stopping.is_alive():
            if (launch := scheduler.next_launch(10)) is not None:
                harness.scripted.step(*launch[1:])
                scheduler.complete(launch[1])
    return times[WARM_UP:]


async def worker_times(steps: int) -> list[float]:
    """Microseconds from the bell of a step until all of its consumers have their tokens."""
    ring_shape, times = shape(steps), []
    limits = SessionLimits(ring_shape.context_length, ring_shape.vocabulary_size, (2,))
    with ScriptedHarness(ring_shape, trace_capacity=0) as harness:
        bells = Bells(harness.doorbell, harness.bells[0])
        grant = Grant(
            0,
            limits,
            SLOTS,
            max_rows=ROWS,
            kv_blocks=ring_shape.block_count,
            kv_block_tokens=ring_shape.block_size,
            graphs=ring_shape.grid.keys,
        )
        session = RingSession(harness.ring, grant, bells, detach=lambda: None)
        asked = GenerateRequest(prompt_ids=PROMPT, max_tokens=steps + 1, ignore_eos=True)
        streams = [(await session.submit(asked)).__aiter__() for _ in range(ROWS)]
        first = [asyncio.ensure_future(_next(stream)) for stream in streams]
        while not all(one.done() for one in first):
            until_launched(harness)
            harness.finish_step()
            until_launched(harness)
            await asyncio.sleep(0)
        for _ in range(steps - WARM_UP):
            waiting = [asyncio.ensure_future(_next(stream)) for stream in streams]
            await asyncio.sleep(0)  # every consumer waits for its token
            harness.finish_step()
            until_launched(harness)  # publishes the tokens, and rings the bell
            started = time.perf_counter_ns()
            await asyncio.gather(*waiting)
            times.append((time.perf_counter_ns() - started) / 1000)
        closing = asyncio.ensure_future(session.close())
        while not closing.done():
            harness.settle()
            await asyncio.sleep(0)
    return times[WARM_UP:]


async def _next(stream: object) -> TokenEvent:
    return await anext(stream)  # type: ignore[call-overload,no-any-return]


def claim_times(claims: int) -> list[float]:
    """Microseconds of the pass that claims one request of an idle ring and launches its prefill."""
    times = []
    request = ScriptedRequest(prompt=PROMPT, max_tokens=1)
    with ScriptedHarness(shape(0), trace_capacity=0) as harness:
        atomic, scheduler = harness.ring.atomic, harness.scheduler
        for number in range(claims):
            slot, ticket = (number * 1021) % (SLOTS - 1), 1 + number // (SLOTS - 1)
            harness.write_record(slot, request)
            harness.settle()
            atomic.submit(slot, ticket)
            started = time.perf_counter_ns()
            scheduler.run_pass()
            times.append((time.perf_counter_ns() - started) / 1000)
            atomic.release(slot, ticket)
    return times[WARM_UP:]


def busy_claim_times() -> list[float]:
    """Microseconds of each pass that claims one more request while a step runs, until none fits."""
    times = []
    with decoding(WARM_UP) as harness:
        until_launched(harness)
        for slot in range(ROWS, SLOTS):
            harness.write_record(slot, ScriptedRequest(prompt=PROMPT))
            harness.ring.atomic.submit(slot, 1)
            started = time.perf_counter_ns()
            harness.scheduler.run_pass()
            times.append((time.perf_counter_ns() - started) / 1000)
    return times[WARM_UP:]


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(rounds: int, steps: int) -> tuple[list[Measure], dict[str, list[float]]]:
    """The figures, and the 99th percentiles of every round."""
    raw: dict[str, list[list[float]]] = {}
    for _ in range(rounds):
        raw.setdefault("scheduler", []).append(scheduler_times(steps))
        raw.setdefault("between two steps", []).append(gap_times(steps))
        raw.setdefault("worker", []).append(asyncio.run(worker_times(steps)))
        raw.setdefault("claim, idle ring", []).append(claim_times(steps))
        raw.setdefault("claim, ring filling up", []).append(busy_claim_times())
    medians = {name: [statistics.median(one) for one in each] for name, each in raw.items()}
    both = [sum(pair) for pair in zip(medians["scheduler"], medians["worker"], strict=True)]
    targets: dict[str, float] = {"claim, idle ring": 20, "claim, ring filling up": 20}
    measures = [
        Measure(name, "us", tuple(values), at_most=targets.get(name))
        for name, values in medians.items()
    ]
    measures.insert(3, Measure("scheduler and worker", "us", tuple(both), at_most=50))
    late = {name: [percentile(one, 0.99) for one in each] for name, each in raw.items()}
    return measures, late


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--steps", type=click.IntRange(min=2 * WARM_UP), default=2000, show_default=True)
def main(rounds: int, steps: int) -> None:
    """Measure, print and keep; exit code 1 where a target is missed."""
    machine = describe_machine()
    measures, late = measure(rounds, steps)
    console = Console()
    console.print(report(measures))
    path = keep("step-overhead", __doc__, machine, measures, p99_us=late, steps=steps)
    console.print(f"raw numbers: {path}")
    sys.exit(0 if all(one.met for one in measures) else 1)


if __name__ == "__main__":
    main()
