"""One measurement: a workload against a server, and its figures."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blink_server.bench.client import Client
from blink_server.bench.dispatch import Clock, dispatch
from blink_server.bench.energy import EnergyMeter
from blink_server.bench.exchange import Site
from blink_server.bench.outcome import Outcome
from blink_server.bench.summary import Objectives, Summary, Window, summarise, window_of
from blink_server.bench.workload import Workload

Prompt = str | list[int]


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked, and what of it counts."""

    site: Site
    route: str
    fields: Mapping[str, Any]
    timeout_seconds: float
    warm_up: float
    cool_down: float
    objectives: Objectives


@dataclass(frozen=True, slots=True)
class Measurement:
    """A run's outcomes and figures.

    `generator_cpu` is the share of one core that this process used; near 1 the generator, not the
    server, is measured. `gpu_mj_per_token` is the energy of the GPU boards over the whole run, a
    token that the run's requests got; None where there is no counter.
    """

    outcomes: Sequence[Outcome]
    begun: float
    window: Window
    summary: Summary
    generator_cpu: float
    gpu_mj_per_token: float | None

    @property
    def counted(self) -> list[Outcome]:
        """The requests whose latencies count: those of the window that succeeded."""
        return [one for one in self.outcomes if one.succeeded and one.scheduled in self.window]


async def measure(
    target: Target,
    workload: Workload,
    prompts: Sequence[Prompt],
    *,
    meter: EnergyMeter | None = None,
    on_end: Callable[[Outcome], None] = lambda _: None,
    clock: Clock = time.monotonic,
) -> Measurement:
    """Send a workload; `on_end` hears of every request's end. Server errors are outcomes."""
    client = Client(
        target.site,
        target.route,
        target.fields,
        timeout_seconds=target.timeout_seconds,
        clock=clock,
    )
    requests = [
        client.request(prompt, size.output_tokens)
        for prompt, size in zip(prompts, workload.sizes, strict=True)
    ]

    async def send(number: int, scheduled: float) -> Outcome:
        size = workload.sizes[number]
        outcome = Outcome(number, scheduled, size.input_tokens, size.output_tokens)
        await client.send(outcome, requests[number])
        on_end(outcome)
        return outcome

    gc.collect()
    gc.freeze()  # no collection walks the prepared requests while times are taken
    begun, cpu = clock(), time.process_time()
    energy = meter.read() if meter else 0.0
    try:
        outcomes = await dispatch(workload, send, clock)
    finally:
        gc.unfreeze()
    spent = meter.read() - energy if meter else 0.0
    share = (time.process_time() - cpu) / max(clock() - begun, 1e-9)
    window = window_of(outcomes, workload.seconds, target.warm_up, target.cool_down)
    tokens = sum(outcome.completion_tokens for outcome in outcomes)
    return Measurement(
        outcomes=outcomes,
        begun=begun,
        window=window,
        summary=summarise(outcomes, window, target.objectives),
        generator_cpu=share,
        gpu_mj_per_token=spent / tokens if meter and tokens else None,
    )
