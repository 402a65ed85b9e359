"""What the persistent scheduler costs between two steps, on a GPU with the scripted engine.

    python tests/bench/gpu/scheduler_gaps.py OUTPUT_DIRECTORY [--rows 32] [--steps 3000]
        [--only gaps long parks soak]

Method: the engine's kernels and the scheduler stamp %globaltimer (its resolution is printed).
A gap is the time from the engine's last stamp of a step (just before its completion counter) to
its first stamp of the next (first instruction of the step kernel), so polling, delivery, choice,
filling, launch and the start of the next graph are all inside. All rows decode; requests are long
enough that none ends while it is measured. A ring of 4,096 slots in 16 ranges. The raw stamps are
written beside the summary.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent.gpu.device_scheduler import Moment
from blink_persistent.graph_lookup import decode_lookup
from blink_persistent.testing.device_harness import DeviceHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

STEP_MOMENTS = [
    Moment.LANDED,
    Moment.DELIVERED,
    Moment.DECIDED,
    Moment.FILLED,
    Moment.LAUNCHED,
]
PARTS = ("gaps", "long", "parks", "soak")
PROFILE_CAPACITY = 1 << 17
PROFILE_TIME_BITS = 56  # of a moment's nanoseconds, as the profile keeps them


def shape_of(rows: int, steps: int) -> ScriptedShape:
    """Room for `rows` requests of `steps` tokens; a step reads few tokens of each."""
    context = steps + 64
    return ScriptedShape(
        ranges=16,
        slots_per_range=256,
        max_rows=rows,
        max_sequences=8,
        max_prefill_tokens=256,
        context_length=context,
        vocabulary_size=32000,
        block_size=16,
        block_count=rows * (context // 16 + 2) + 1,
    )


def spread(values: npt.NDArray[Any]) -> dict[str, float]:
    """Microseconds."""
    if len(values) == 0:
        return {"n": 0}
    points = {"min": 0, "p50": 50, "p90": 90, "p99": 99, "max": 100}
    found = {name: round(float(np.percentile(values, p)) / 1e3, 3) for name, p in points.items()}
    return {"n": len(values), "mean": round(float(values.mean()) / 1e3, 3), **found}


def long_requests(rows: int, tokens: int) -> dict[int, ScriptedRequest]:
    """By slot, spread over the ranges as workers would spread them."""
    return {
        (i % 16) * 256 + i // 16: ScriptedRequest((5, 6, 7 + i), max_tokens=tokens, ignore_eos=True)
        for i in range(rows)
    }


def measure(rows: int, steps: int, step_ns: int, profiled: bool, output: Path) -> dict[str, Any]:
    """One run; its raw stamps go to a file of their own."""
    requests = long_requests(rows, steps)
    capacity = PROFILE_CAPACITY if profiled else 0
    with DeviceHarness(
        shape_of(rows, steps), step_ns=step_ns, times_capacity=1 << 16, profile_capacity=capacity
    ) as harness:
        harness.submit(requests)
        harness.scheduler.launch()
        harness.wait_for_ends(requests, timeout_s=120)
        harness.scheduler.park()
        counters = {
            name: harness.ring.field(name)
            for name in ("steps", "launch_retries", "tail_launches", "generated_tokens")
        }
        times = harness.engine.times()
        profile = harness.scheduler.drain_profile() if profiled else np.empty((0, 2), np.int64)
        first = harness.output(0)
        assert first == requests[0].answer(harness.shape).tokens
    name = f"rows{rows}_step{step_ns}ns_{'profiled' if profiled else 'plain'}"
    np.savez_compressed(output / f"{name}.npz", times=times, profile=profile)
    return {"run": name, **counters, **summarize(times, profile)}


def summarize(times: npt.NDArray[Any], profile: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Gaps, and where they go, leaving out the first hundred and last steps."""
    times = times.astype(np.int64)[100:-10]
    gaps = times[1:, 0] - times[:-1, 1]
    found: dict[str, Any] = {
        "gap_us": spread(gaps),
        "step_us": spread(times[:, 1] - times[:, 0]),
        "resolution_ns": int(np.gcd.reduce(np.diff(np.sort(times.ravel())))),
    }
    if len(profile):
        found["parts_us"] = parts(times & (1 << PROFILE_TIME_BITS) - 1, profile)
    return found


def parts(times: npt.NDArray[np.int64], profile: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Each part of a gap, of steps whose moments came in their order."""
    kind, at = profile[:, 0], profile[:, 1]
    cycle = np.array([int(moment) for moment in STEP_MOMENTS])
    begins = np.flatnonzero(kind == Moment.LANDED)
    begins = begins[begins + len(cycle) <= len(kind)]
    whole = begins[(kind[begins[:, None] + np.arange(len(cycle))] == cycle).all(axis=1)]
    whole = whole[(at[whole] > times[0, 1]) & (at[whole] < times[-2, 1])]
    landed, launched = at[whole], at[whole + len(cycle) - 1]
    found: dict[str, Any] = {}
    ended = times[np.searchsorted(times[:, 1], landed, "right") - 1, 1]
    found["ended..LANDED"] = spread(landed - ended)
    for i in range(1, len(cycle)):
        name = f"{STEP_MOMENTS[i - 1].name}..{STEP_MOMENTS[i].name}"
        found[name] = spread(at[whole + i] - at[whole + i - 1])
    begun = times[np.searchsorted(times[:, 0], at[whole + len(cycle) - 2], "right"), 0]
    found["LAUNCHED..begun"] = spread(begun - launched)
    found["scan of all slots"] = between(kind, at, Moment.SCANNING, Moment.SCANNED)
    found["tail relaunch"] = between(kind, at, Moment.RELAUNCHING, Moment.STARTED)
    return found


def measure_long_graphs(rows: int, nodes: int, steps: int, output: Path) -> dict[str, Any]:
    """Graphs with a model's number of kernels: the gap, retries, memory, and against host replays.

    A period is the time from one step's first stamp to the next's. The scheduler is parked in
    the midst of generation; the host then replays the last decode step as it is, its graph
    enqueued back to back without waiting, against the device loop's last 40 steps (whose rows are
    up to 40 tokens shorter, 41 ns a token).
    """
    with DeviceHarness(
        shape_of(rows, 2 * steps),
        times_capacity=1 << 16,
        profile_capacity=PROFILE_CAPACITY,
        filler_kernels=nodes - 2,
    ) as harness:
        harness.submit(long_requests(rows, 2 * steps))
        harness.scheduler.launch()
        harness.wait_until(lambda: harness.ring.field("steps") > steps, "steps", 120)
        harness.scheduler.park()
        times, profile = harness.engine.times(), harness.scheduler.drain_profile()
        retries = harness.ring.field("launch_retries")
        replays, stream = steps // 4, harness.gpu.new_stream()
        graph = harness.engine.graphs[int(decode_lookup(harness.shape.grid)[rows - 1])]
        for _ in range(replays):
            harness.gpu.call("cuGraphLaunch", graph, stream)
        harness.gpu.call("cuStreamSynchronize", stream)
        replayed = harness.engine.times()[-replays + 10 :].astype(np.int64)
        graph_bytes = harness.engine.graph_bytes / len(harness.engine.graphs)
    name = f"long_rows{rows}_nodes{nodes}"
    np.savez_compressed(output / f"{name}.npz", times=times, profile=profile, replayed=replayed)
    looped = times.astype(np.int64)[-40:]
    return {
        "run": name,
        "launch_retries": retries,
        "bytes_a_graph": round(graph_bytes),
        "period_device_us": spread(np.diff(looped[:, 0])),
        "period_host_replay_us": spread(np.diff(replayed[:, 0])),
        **summarize(times, profile),
    }


def measure_parks(rows: int, parks: int = 100) -> dict[str, Any]:
    """Wall-clock time of parking in the midst of 50 us steps, and from launch to a step's end.

    The host polls for the end of the kernel every 50 us, and copies the header to see a step.
    """
    parked, resumed = [], []
    with DeviceHarness(shape_of(rows, 3000), step_ns=50_000) as harness:
        harness.submit(long_requests(rows, 3000))
        harness.scheduler.launch()
        for _ in range(parks):
            steps = harness.ring.field("steps")
            harness.wait_until(lambda: harness.ring.field("steps") > steps + 5, "steps")  # noqa: B023
            begun = time.perf_counter_ns()
            harness.scheduler.park()
            parked.append(time.perf_counter_ns() - begun)
            steps = harness.ring.field("steps")
            begun = time.perf_counter_ns()
            harness.scheduler.launch()
            harness.wait_until(lambda: harness.ring.field("steps") > steps, "a step")  # noqa: B023
            resumed.append(time.perf_counter_ns() - begun)
    found = {"park_us": spread(np.array(parked)), "resume_to_step_us": spread(np.array(resumed))}
    return {"run": f"parks_rows{rows}", **found}


def soak(rows: int, steps: int) -> dict[str, Any]:
    """Steps without a pause, renewing requests; every answer is checked."""
    requests = long_requests(rows, 1000)
    with DeviceHarness(shape_of(rows, 1000)) as harness:
        harness.scheduler.launch()
        answers = {slot: request.answer(harness.shape) for slot, request in requests.items()}
        while harness.ring.field("steps") < steps:
            harness.submit(requests)
            harness.wait_for_ends(requests, timeout_s=120)
            assert all(harness.output(slot) == answers[slot].tokens for slot in requests)
            harness.release(requests)
            harness.wait_for_empty(requests)
        harness.scheduler.park()
        names = ("steps", "launch_retries", "tail_launches", "generated_tokens", "error")
        return {"run": f"soak_rows{rows}", **{name: harness.ring.field(name) for name in names}}


def between(
    kind: npt.NDArray[np.int64], at: npt.NDArray[np.int64], first: Moment, second: Moment
) -> dict[str, float]:
    """Times between two moments that follow one another."""
    pairs = np.flatnonzero((kind[:-1] == first) & (kind[1:] == second))
    return spread(at[pairs + 1] - at[pairs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 32, 64, 256])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--soak-steps", type=int, default=100_000)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    runs: list[Callable[[], dict[str, Any]]] = []
    if "gaps" in arguments.only:
        runs += [
            partial(measure, rows, arguments.steps, step_ns, profiled, arguments.output)
            for rows in arguments.rows
            for step_ns in (0, 50_000)
            for profiled in (False, True)
        ]
    if "long" in arguments.only:
        runs.append(partial(measure_long_graphs, 32, 390, 1000, arguments.output))
    if "parks" in arguments.only:
        runs.append(partial(measure_parks, 32))
    if "soak" in arguments.only:
        runs.append(partial(soak, 32, arguments.soak_steps))
    results = []
    for run in runs:
        results.append(run())
        print(json.dumps(results[-1]), flush=True)
    (arguments.output / "summary.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
