"""Decode steps in the persistent scheduler's loop against back-to-back replays by the host.

    python tests/bench/gpu/device_loop.py OUTPUT_DIRECTORY --model llama-3-8b

Method: random weights in bfloat16. `--rows` requests decode at once; the loop's step is the median
time from one launch to the next, by the scheduler's own stamps, over 100 steps in which all rows
have about 512 + 530 entries of KV; the prompts' prefill, at the GPU's power limit, which slows what
comes next, is 480 steps ago. Then, with no scheduler on the GPU, the same rows with as many
entries each are replayed 100 times back to back: the same executable that the device launches
("same"), and PyTorch's own of the same captured graph ("plain"), median of 5 runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine_steps import step_us
from step_inputs import fill_decode

from blink_persistent.engines.cuda.provisioned import CudaProvisioned
from blink_persistent.gpu.device_scheduler import DeviceScheduler, Moment
from blink_persistent.graph_grid import DECODE, PREFILL, GraphGrid, GraphKey
from blink_persistent.testing.cuda_harness import CudaHarness, cuda_version, provision
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

PROMPT, OUTPUT = 512, 620
FIRST_STEP, STEPS, RUNS = 480, 100, 5
CONTEXT_LENGTH = 2048


def loop_us(engine: CudaProvisioned, rows: int) -> float:
    """Microseconds from one decode launch to the next in the device's loop."""
    shape = ScriptedShape(
        max_rows=rows,
        context_length=CONTEXT_LENGTH,
        vocabulary_size=engine.shape.vocabulary_size,
    )
    rng = np.random.default_rng(3)
    prompts = rng.integers(0, shape.vocabulary_size, (rows, PROMPT)).tolist()
    requests = {
        slot: ScriptedRequest(tuple(prompt), max_tokens=OUTPUT, ignore_eos=True)
        for slot, prompt in enumerate(prompts)
    }
    with CudaHarness(shape, engine, profile_capacity=1 << 21, borrowed=True) as harness:
        harness.submit(requests)
        harness.scheduler.launch()
        harness.wait_for_ends(requests, timeout_s=60.0)
        scheduler = harness.scheduler
        assert isinstance(scheduler, DeviceScheduler)
        scheduler.park()
        events = scheduler.drain_profile()
    launched = events[events[:, 0] == Moment.LAUNCHED, 1]
    prefills = len(launched) - OUTPUT  # about: the last ones began a few steps later
    first = prefills + FIRST_STEP
    return float(np.median(np.diff(launched[first : first + STEPS]))) / 1e3


def same_us(engine: CudaProvisioned, key: GraphKey) -> float:
    """Microseconds of a step, the executable of the device's loop launched by the host."""
    executable = engine.graphs[engine.grid.keys.index(key)]
    stream = torch.cuda.Stream()
    found = []
    for _ in range(RUNS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(stream)
        for _ in range(STEPS):
            engine.gpu.call("cuGraphLaunch", executable, stream.cuda_stream)
        end.record(stream)
        end.synchronize()
        found.append(1e3 * start.elapsed_time(end) / STEPS)
    return float(statistics.median(found))


def measure(model: str, rows: list[int]) -> list[dict[str, Any]]:
    grid = GraphGrid(
        (*(GraphKey(DECODE, each, each) for each in sorted(rows)), GraphKey(PREFILL, 8, 2048))
    )
    with tempfile.TemporaryDirectory() as directory:
        version = cuda_version(
            Path(directory),
            engine={"weights": "random", "model": model},
            context_length=CONTEXT_LENGTH,
            memory_fraction=0.6,
        )
        engine = provision(version, grid)
    found = []
    try:
        for each in rows:
            engine.reset()
            key = GraphKey(DECODE, each, each)
            loop = loop_us(engine, each)
            fill_decode(engine, each, PROMPT + FIRST_STEP + STEPS // 2)
            same, plain = same_us(engine, key), step_us(engine, key)
            row = {"rows": each, "loop_us": loop, "same_us": same, "plain_us": plain}
            found.append({**row, "over_same": loop / same, "over_plain": loop / plain})
            print(model, found[-1], flush=True)
    finally:
        engine.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 16, 64])
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for model in arguments.model:
        found = measure(model, arguments.rows)
        (arguments.output / f"loop-{model}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
