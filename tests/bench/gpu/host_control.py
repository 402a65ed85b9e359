"""The persistent scheduler against the same graphs driven by a host thread (paper, figure 3).

    python tests/bench/gpu/host_control.py OUTPUT_DIRECTORY [--nodes 390] [--step-us 0 1000 5000]

Method: the scripted engine, its graphs as long as a model's (`--nodes`, of which all but two are
empty kernels), its steps at least `--step-us` (0: what the graph itself takes). A workload is
submitted at once; its makespan is taken from the scheduler's own stamps, first claim to last end,
in the clock of whoever runs it. A ring of 4,096 slots in 16 ranges; the process that waits looks
every millisecond. The control comes in three kinds: `spin` synchronizes and the driver spins,
`block` synchronizes and the driver sleeps (CU_CTX_SCHED_BLOCKING_SYNC), `poll` asks the stream and
reads the ring in between. Its thread is bound to one core; the hog is a process bound to that core
that copies 64 MiB over and over, and for the persistent scheduler it runs there all the same. Every
answer is checked. Ratios are of medians, the control's makespan over the persistent scheduler's
under the same conditions. All makespans are written as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blink_persistent.gpu.driver import cuda_driver
from blink_persistent.ring import SlotState
from blink_persistent.testing.device_harness import DeviceHarness
from blink_persistent.testing.host_driven_harness import HostDrivenHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

HOG = "a = bytearray(1 << 26)\nprint('ready', flush=True)\nwhile True: b = bytes(a)"
CONTROL_CORE = max(os.sched_getaffinity(0))
LOOK_SECONDS = 1e-3
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


def placements() -> dict[str, Callable[..., DeviceHarness]]:
    """Who runs the scheduler, by name; each makes a harness with the options given."""

    def driven(polls: bool, blocks: bool, **options: Any) -> DeviceHarness:
        set_context_flags(blocks)
        return HostDrivenHarness(SHAPE, polls=polls, **options)

    def device(**options: Any) -> DeviceHarness:
        set_context_flags(blocks=False)
        return DeviceHarness(SHAPE, **options)

    return {
        "device": device,
        "spin": partial(driven, polls=False, blocks=False),
        "block": partial(driven, polls=False, blocks=True),
        "poll": partial(driven, polls=True, blocks=False),
    }


def set_context_flags(blocks: bool) -> None:
    """How a synchronizing thread waits, for the context that is made next."""
    driver = cuda_driver()
    _, device = driver.cuDeviceGet(0)
    kinds = driver.CUctx_flags
    flags = kinds.CU_CTX_SCHED_BLOCKING_SYNC if blocks else kinds.CU_CTX_SCHED_SPIN
    (status,) = driver.cuDevicePrimaryCtxSetFlags(device, int(flags))
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"cuDevicePrimaryCtxSetFlags: {status.name}")


@contextmanager
def bound_to(cores: set[int]) -> Iterator[None]:
    """This thread, and those that it starts, on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def hog(wanted: bool) -> Iterator[None]:
    """A process that takes the control's core, if wanted."""
    if not wanted:
        yield
        return
    with bound_to({CONTROL_CORE}):
        process = subprocess.Popen([sys.executable, "-c", HOG], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        process.wait()


class Served(NamedTuple):
    """A workload's requests, and each slot's answer by the plain rule."""

    requests: dict[int, ScriptedRequest]
    answers: dict[int, tuple[int, ...]]

    @classmethod
    def of(cls, workload: Workload) -> Served:
        requests = workload.made(SHAPE.vocabulary_size)
        return cls(requests, {slot: r.answer(SHAPE).tokens for slot, r in requests.items()})

    def makespan_us(self, harness: DeviceHarness) -> float:
        """Serves it once; first claim to last end, by the scheduler's stamps."""
        harness.submit(self.requests)
        self._wait_for(harness, SlotState.DECODE_COMPLETED)
        mirror, slots = harness.ring.mirror, list(self.requests)
        harness.ring.pull(mirror.timings)
        claimed, finished = (mirror.timings[name][slots] for name in ("claimed_ns", "finished_ns"))
        for slot, answer in self.answers.items():
            start = int(mirror.records["output_offset"][slot])
            tokens = mirror.outputs[slot // SHAPE.slots_per_range][start : start + len(answer)]
            harness.ring.pull(tokens)
            assert tuple(tokens.tolist()) == answer, f"slot {slot}: wrong tokens"
        harness.release(self.requests)
        self._wait_for(harness, SlotState.EMPTY)
        return float(finished.max() - claimed.min()) / 1e3

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
    name: str, harness: DeviceHarness, workloads: list[Workload], runs: int
) -> list[dict[str, Any]]:
    """All workloads under one placement, alone and with the hog; the first of all warms up."""
    found = []
    others = os.sched_getaffinity(0) - {CONTROL_CORE}
    with bound_to({CONTROL_CORE}):
        harness.scheduler.launch()  # a host thread is started here and inherits the core
    with bound_to(others):
        Served.of(workloads[0]).makespan_us(harness)
        for workload, hogged in itertools.product(workloads, (False, True)):
            served = Served.of(workload)
            before = harness.ring.field("steps")
            with hog(hogged):
                spans = [served.makespan_us(harness) for _ in range(runs)]
            steps = (harness.ring.field("steps") - before) / runs
            found.append(
                {
                    "placement": name,
                    "workload": str(workload),
                    "hog": hogged,
                    "steps": steps,
                    "makespans_us": spans,
                }
            )
    return found


def report(results: list[dict[str, Any]]) -> None:
    """Median makespans, and the control's over the persistent scheduler's."""
    spans = {
        (r["workload"], r["placement"], r["hog"]): float(np.median(r["makespans_us"]))
        for r in results
    }
    steps = {r["workload"]: r["steps"] for r in results if r["placement"] == "device"}
    for workload, count in steps.items():
        alone = spans[workload, "device", False]
        hogged = spans[workload, "device", True]
        cells = [f"{workload:>14} {count:4.0f} steps, device {alone / 1e3:9.3f} ms"]
        cells.append(f"hog {hogged / alone:.3f}")
        for control in ("spin", "block", "poll"):
            quiet, noisy = spans[workload, control, False], spans[workload, control, True]
            extra = (quiet - alone) / count
            cells.append(
                f"{control} {quiet / alone:.3f} (+{extra:.1f} us a step) hog {noisy / hogged:.2f}"
            )
        print(" | ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--step-us", type=int, nargs="*", default=[0, 1000, 5000])
    parser.add_argument("--nodes", type=int, default=390)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workloads", type=int, default=len(WORKLOADS), help="the first so many")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for step_us in arguments.step_us:
        results = []
        for name, make in placements().items():
            with make(step_ns=1000 * step_us, filler_kernels=arguments.nodes - 2) as harness:
                results += measure(
                    name, harness, list(WORKLOADS[: arguments.workloads]), arguments.runs
                )
        run = f"nodes{arguments.nodes}_step{step_us}us"
        (arguments.output / f"{run}.json").write_text(json.dumps(results, indent=1) + "\n")
        print(run)
        report(results)


if __name__ == "__main__":
    main()
