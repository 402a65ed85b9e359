"""The persistent scheduler against the same graphs driven by a host thread (paper, figure 3).

    python tests/bench/gpu/host_control.py OUTPUT_DIRECTORY [--nodes 390] [--step-us 0 1000 5000]
    python tests/bench/gpu/host_control.py OUTPUT_DIRECTORY --model llama-3-8b [--alone]

Method: the scripted engine, its graphs as long as a model's (`--nodes`, of which all but two are
empty kernels), its steps at least `--step-us` (0: what the graph itself takes); or the engine
`cuda` with random weights at a model's full shape, all placements over the same executable graphs.
A workload is submitted at once; its makespan is taken from the scheduler's own stamps, first claim
to last end, in the clock of whoever runs it. So is the part of it until the last first token, which
is nearly all prefill; what follows are decode steps, one less than tokens asked for. A ring of
4,096 slots in 16 ranges; the process that waits looks every millisecond. The control comes in three
kinds: `spin` synchronizes and the driver spins, `block` synchronizes and the driver sleeps
(CU_CTX_SCHED_BLOCKING_SYNC), `poll` asks the stream and reads the ring in between. Its thread is
bound to one core; the hog is a process bound to that core that copies 64 MiB over and over, and for
the persistent scheduler it runs there all the same. Before every run the GPU rests: without that, a
run at the power limit was 1 % longer behind one of full load than behind one that a hog had slowed,
its prefill 8 %. Every answer is checked: the scripted engine's
token by token, a model's for its length. Every round has all placements, each time another one
first, so that a GPU which gets warm or meets its power limit does so for all of them. Ratios are of
medians over the rounds, the control's makespan over the persistent scheduler's under the same
conditions; beside the latter stands half the range of its own rounds, below which a ratio says
nothing. All times are written as JSON. Keep `nvidia-smi
--query-gpu=clocks.sm,power.draw,clocks_event_reasons.active` beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from control_core import CONTROL_CORE, bound_to, hog, set_context_flags

from blink_persistent.engines.cuda.provisioned import CudaProvisioned
from blink_persistent.graph_grid import default_grid
from blink_persistent.ring import Reason, SlotState
from blink_persistent.testing.cuda_harness import (
    CudaHarness,
    HostDrivenCudaHarness,
    cuda_version,
    provision,
)
from blink_persistent.testing.device_harness import DeviceHarness
from blink_persistent.testing.host_driven_harness import HostDrivenHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

LOOK_SECONDS = 1e-3
REST_SECONDS = 0.5
PATIENCE_SECONDS = 60.0


class Workload(NamedTuple):
    """So many requests, each of `prompt` tokens and `output` tokens to generate."""

    requests: int
    prompt: int
    output: int

    def __str__(self) -> str:
        return f"{self.requests}x{self.prompt}->{self.output}"

    def made(self, vocabulary: int) -> dict[int, ScriptedRequest]:
        """By slot, spread over the ranges as workers would spread them."""
        return {
            (i % 16) * 256 + i // 16: ScriptedRequest(
                tuple(3 + (i + at) % (vocabulary - 3) for at in range(self.prompt)),
                max_tokens=self.output,
                ignore_eos=True,
            )
            for i in range(self.requests)
        }


WORKLOADS = (
    Workload(16, 128, 32),
    Workload(16, 512, 128),
    Workload(64, 128, 128),
    Workload(16, 1024, 512),
)
SHAPE = ScriptedShape(
    ranges=16,
    slots_per_range=256,
    max_rows=64,
    max_sequences=16,
    max_prefill_tokens=2048,
    context_length=1600,
    vocabulary_size=32000,
    block_size=16,
    block_count=64 * 100 + 1,
)


Make = Callable[[], DeviceHarness]
KINDS = {  # of the control: does it poll, does it sleep
    "spin": (False, False),
    "block": (False, True),
    "poll": (True, False),
}


def scripted_placements(**options: Any) -> dict[str, Make]:
    """Who runs the scheduler, by name; each makes a harness of the scripted engine."""

    def driven(polls: bool, blocks: bool) -> DeviceHarness:
        set_context_flags(blocks)
        return HostDrivenHarness(SHAPE, polls=polls, **options)

    def device() -> DeviceHarness:
        set_context_flags(blocks=False)
        return DeviceHarness(SHAPE, **options)

    return {"device": device, **{name: partial(driven, *kind) for name, kind in KINDS.items()}}


def model_placements(engine: CudaProvisioned) -> dict[str, Make]:
    """As `scripted_placements`, all over one provisioned model."""
    shape = replace(SHAPE, vocabulary_size=engine.shape.vocabulary_size)

    def driven(polls: bool, blocks: bool) -> DeviceHarness:
        engine.reset()
        set_context_flags(blocks)
        return HostDrivenCudaHarness(shape, engine, polls=polls, borrowed=True)

    def device() -> DeviceHarness:
        engine.reset()
        set_context_flags(blocks=False)
        return CudaHarness(shape, engine, borrowed=True)

    return {"device": device, **{name: partial(driven, *kind) for name, kind in KINDS.items()}}


def provision_model(model: str) -> CudaProvisioned:
    with tempfile.TemporaryDirectory() as directory:
        version = cuda_version(
            Path(directory),
            engine={"weights": "random", "model": model, "block_count": 2500},
            context_length=2048,
            memory_fraction=0.8,
        )
        return provision(version, default_grid(64, 2048, max_sequences=16))


class Spans(NamedTuple):
    """Microseconds from the first claim on: to the last first token, and to the last end."""

    first_tokens_us: float
    makespan_us: float


class Served(NamedTuple):
    """A workload's requests, and each slot's answer where there is a plain rule."""

    workload: Workload
    requests: dict[int, ScriptedRequest]
    answers: dict[int, tuple[int, ...]] | None

    @classmethod
    def of(cls, workload: Workload, harness: DeviceHarness) -> Served:
        shape = harness.shape
        requests = workload.made(shape.vocabulary_size)
        if isinstance(harness, CudaHarness):
            return cls(workload, requests, None)
        answers = {slot: r.answer(shape).tokens for slot, r in requests.items()}
        return cls(workload, requests, answers)

    def spans(self, harness: DeviceHarness) -> Spans:
        """Serves it once; by the scheduler's stamps."""
        harness.submit(self.requests)
        self._wait_for(harness, SlotState.DECODE_COMPLETED)
        mirror, slots = harness.ring.mirror, list(self.requests)
        harness.ring.pull(mirror.timings)
        timings = mirror.timings[slots].copy()
        self._check(harness)
        harness.release(self.requests)
        self._wait_for(harness, SlotState.EMPTY)
        claimed = timings["claimed_ns"].min()
        ends = (timings[name].max() for name in ("first_token_ns", "finished_ns"))
        return Spans(*(float(end - claimed) / 1e3 for end in ends))

    def _check(self, harness: DeviceHarness) -> None:
        if self.answers is None:
            statuses = harness.statuses()
            for slot in self.requests:
                ended = statuses[slot].reason, statuses[slot].generated
                assert ended == (Reason.MAX_TOKENS, self.workload.output), f"slot {slot}: {ended}"
            return
        for slot, answer in self.answers.items():
            assert harness.output(slot) == answer, f"slot {slot}: wrong tokens"

    def _wait_for(self, harness: DeviceHarness, state: SlotState) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            harness.ring.pull(harness.ring.mirror.status)
            words = harness.ring.mirror.status["word"][list(self.requests)]
            if (words >> 32 & 0xFF == state).all():
                return
            harness.scheduler.is_idle()  # raises where it has died
            if time.monotonic() > deadline:
                raise TimeoutError(f"requests do not reach {state.name}")
            time.sleep(LOOK_SECONDS)


def measure(
    name: str,
    harness: DeviceHarness,
    workloads: Sequence[Workload],
    hogs: Sequence[bool],
    number: int,
) -> list[dict[str, Any]]:
    """All workloads under one placement, with and without the hog; the first of all warms up."""
    found = []
    others = os.sched_getaffinity(0) - {CONTROL_CORE}
    with bound_to({CONTROL_CORE}):
        harness.scheduler.launch()  # a host thread is started here and inherits the core
    with bound_to(others):
        Served.of(workloads[0], harness).spans(harness)
        for workload, hogged in itertools.product(workloads, hogs):
            served = Served.of(workload, harness)
            before = harness.ring.field("steps")
            with hog(hogged):
                time.sleep(REST_SECONDS)
                spans = served.spans(harness)
            found.append(
                {
                    **{"round": number, "placement": name, "workload": str(workload)},
                    **{"hog": hogged, "steps": harness.ring.field("steps") - before},
                    **spans._asdict(),
                }
            )
    return found


def report(results: list[dict[str, Any]], workloads: Sequence[Workload]) -> None:
    """Median makespans, and the control's over the persistent scheduler's."""

    def times(field: str, workload: Workload, placement: str, hogged: bool) -> list[float]:
        wanted = str(workload), placement, hogged
        return [
            float(r[field]) for r in results if (r["workload"], r["placement"], r["hog"]) == wanted
        ]

    def medians(workload: Workload, placement: str, hogged: bool) -> Spans:
        return Spans(
            *(float(np.median(times(f, workload, placement, hogged))) for f in Spans._fields)
        )

    controls = [name for name in KINDS if any(r["placement"] == name for r in results)]
    hogged = any(r["hog"] for r in results)
    for workload in workloads:
        own = times("makespan_us", workload, "device", hogged=False)
        alone = medians(workload, "device", hogged=False)
        spread = (max(own) - min(own)) / 2 / alone.makespan_us
        cells = [f"{workload!s:>14} device {alone.makespan_us / 1e3:9.3f} ms +- {spread:.1%}"]
        if hogged:
            beside = medians(workload, "device", hogged=True)
            cells.append(f"hog {beside.makespan_us / alone.makespan_us:.3f}")
        for control in controls:
            quiet = medians(workload, control, hogged=False)
            longer = quiet.makespan_us - alone.makespan_us
            first = quiet.first_tokens_us - alone.first_tokens_us
            cell = (
                f"{control} {quiet.makespan_us / alone.makespan_us:.3f}"
                f" (first tokens {first / 1e3:+.2f} ms,"
                f" then {(longer - first) / (workload.output - 1):+.1f} us a step)"
            )
            if hogged:
                noisy = medians(workload, control, hogged=True)
                cell += f" hog {noisy.makespan_us / beside.makespan_us:.2f}"
            cells.append(cell)
        print(" | ".join(cells), flush=True)


def run(name: str, placements: dict[str, Make], arguments: argparse.Namespace) -> None:
    """All placements, one after the other, in every round; keeps and reports what they took."""
    results: list[dict[str, Any]] = []
    workloads = WORKLOADS[: arguments.workloads]
    hogs = (False,) if arguments.alone else (False, True)
    names = ["device", *(arguments.control or KINDS)]
    for number in range(arguments.runs):
        first = number % len(names)
        for placement in names[first:] + names[:first]:
            with placements[placement]() as harness:
                results += measure(placement, harness, workloads, hogs, number)
        (arguments.output / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    print(name)
    report(results, workloads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--step-us", type=int, nargs="*", default=[0, 1000, 5000])
    parser.add_argument("--nodes", type=int, default=390)
    parser.add_argument("--runs", type=int, default=3, help="rounds")
    parser.add_argument("--workloads", type=int, default=len(WORKLOADS), help="the first so many")
    parser.add_argument("--alone", action="store_true", help="never with the hog")
    parser.add_argument("--control", action="append", choices=list(KINDS), help="all by default")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for model in arguments.model:
        engine = provision_model(model)
        try:
            run(model, model_placements(engine), arguments)
        finally:
            engine.close()
    for step_us in [] if arguments.model else arguments.step_us:
        placements = scripted_placements(step_ns=1000 * step_us, filler_kernels=arguments.nodes - 2)
        run(f"nodes{arguments.nodes}_step{step_us}us", placements, arguments)


if __name__ == "__main__":
    main()
