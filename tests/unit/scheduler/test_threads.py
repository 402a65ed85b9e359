"""Scheduler, engine and four frontends on threads of their own."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from blink_persistent.ring import Condition, Reason, SlotState
from blink_persistent.testing.observed import Command
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import Answer, ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

FRONTENDS = 4
SLOTS = 6  # of each frontend
REQUESTS = 40  # by each frontend


class Frontend:
    """Keeps a few requests of its range in flight and checks every one to its end."""

    def __init__(self, harness: ScriptedHarness, range_: int) -> None:
        self.harness = harness
        self.range = range_
        self.random = random.Random(range_)
        self.tickets = {256 * range_ + place: 0 for place in range(SLOTS)}
        self.asked: dict[int, tuple[ScriptedRequest, bool]] = {}
        self.reasons: list[Reason] = []

    def run(self) -> list[Reason]:
        left = REQUESTS
        while left or self.asked:
            for slot in self.tickets:
                if slot in self.asked:
                    self.follow(slot)
                elif left:
                    left -= 1
                    self.submit(slot)
            if self.asked:
                self.harness.wait(self.range)
        return self.reasons

    def submit(self, slot: int) -> None:
        prompt = tuple(self.random.randrange(3, 101) for _ in range(self.random.randint(1, 30)))
        request = ScriptedRequest(prompt, max_tokens=self.random.randint(1, 30))
        cancelled = self.random.randrange(4) == 0
        self.tickets[slot] += 1
        self.asked[slot] = request, cancelled
        self.harness.submit(slot, self.tickets[slot], request)
        if cancelled:
            self.harness.take_over(slot)  # at once: released before it is even claimed

    def follow(self, slot: int) -> None:
        ticket, (request, cancelled) = self.tickets[slot], self.asked[slot]
        status = self.harness.accepted(slot, ticket)
        if status is None:
            return
        if status.state == SlotState.EMPTY:
            del self.asked[slot]
            return
        answer = request.answer(self.harness.shape)
        tokens = self.harness.output(slot, ticket)
        if self.harness.is_empty(slot, ticket):
            return  # it became EMPTY between the two reads; seen at the next turn
        assert tokens == answer.tokens[: len(tokens)]
        if status.state == SlotState.DECODE_COMPLETED:
            if not (cancelled and status.reason == Reason.CANCELLED):
                assert Answer(tokens, status.reason) == answer
                self.reasons.append(status.reason)
            self.harness.ring.atomic.release(slot, ticket)
            self.harness.ring_doorbell()


@pytest.mark.parametrize("rows_movable", [True, False])
def test_concurrent_frontends_each_get_their_own_answers(rows_movable: bool) -> None:
    shape = ScriptedShape(
        ranges=FRONTENDS, rows_movable=rows_movable, max_rows=6, block_count=30, eos_every=40
    )
    with ScriptedHarness(shape, trace_capacity=0) as harness:
        with harness.serving(), ThreadPoolExecutor(FRONTENDS) as pool:
            ends = list(pool.map(Frontend.run, [Frontend(harness, r) for r in range(FRONTENDS)]))
        for reasons in ends:
            assert {Reason.MAX_TOKENS, Reason.END_OF_SEQUENCE} <= set(reasons)
        claims, completions = harness.counters("claims", "completions")
        assert claims == completions == FRONTENDS * REQUESTS
        assert harness.counters("rows_used", "blocks_used", "waiting") == [0, 0, 0]
        assert harness.scheduler.condition() == Condition.STOPPED


def reach(harness: ScriptedHarness, condition: Condition) -> None:
    """The condition is a word that nobody announces, so it is polled."""
    deadline = time.monotonic() + 10
    while harness.scheduler.condition() != condition:
        assert time.monotonic() < deadline, f"never {condition.name}"
        os.sched_yield()


class LetEngine:
    """Steps as often as it is let, so that a request lasts as long as its test wants."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._let = threading.Semaphore(0)

    def let(self, steps: int) -> None:
        self._let.release(steps)

    def step(self, *launch: int) -> None:
        self._let.acquire()
        self._engine.step(*launch)


@contextmanager
def serving_when_let(harness: ScriptedHarness) -> Iterator[LetEngine]:
    engine: Any = LetEngine(harness.scripted)
    harness.scripted = engine
    with harness.serving():
        try:
            yield engine
        finally:
            engine.let(1000)


def test_a_parked_scheduler_resumes_where_it_stopped() -> None:
    with ScriptedHarness(ScriptedShape()) as harness:
        request = ScriptedRequest((5, 6, 7), max_tokens=80)
        with serving_when_let(harness) as engine:
            harness.submit(0, 1, request)
            for _ in range(5):
                engine.let(1)
                harness.wait(0)
                harness.scheduler.command(Command.PARK)
                engine.let(2)  # for a step under way, and one whose pass had read RUN
                reach(harness, Condition.PARKED)
                assert harness.status(0).reason == Reason.NONE
                harness.scheduler.command(Command.RUN)
                reach(harness, Condition.RUNNING)
            engine.let(80)
            while (status := harness.accepted(0, 1)) is None or status.reason == Reason.NONE:
                harness.wait(0)
        assert harness.counters("parks") == [5]
        assert harness.output(0, 1) == request.answer(harness.shape).tokens


def test_stop_waits_for_the_running_step() -> None:
    with ScriptedHarness(ScriptedShape()) as harness:
        harness.scripted.step_microseconds = 1000
        with harness.serving():
            harness.submit(0, 1, ScriptedRequest((5, 6, 7), max_tokens=80))
            harness.wait(0)
        assert harness.scheduler.condition() == Condition.STOPPED
        launches = harness.ring.launched()
        assert harness.counters("steps") == [launches]  # none was left behind
        with pytest.raises(RuntimeError, match="stopped"):
            harness.scheduler.start()
