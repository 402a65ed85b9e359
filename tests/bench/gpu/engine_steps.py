"""Decode and prefill steps of the engine `cuda` against the memory bandwidth floor.

    python tests/bench/gpu/engine_steps.py OUTPUT_DIRECTORY --model llama-3-8b

Method: random weights at the model's full shape in bfloat16. Every row has `--context` entries
of KV in blocks of its own, drawn at random, and samples greedily. "replay": the captured graph of
a key replayed back to back from the host between two device events, the median of 5 runs of 50
steps. "scheduler": the same graphs launched by the persistent scheduler on the device, from the
engine's steps between two reads of the ring's counters, with requests that all decode; their KV
grows by one entry a step. The floor is (weights read + KV read) / 4.58 TB/s, the vocabulary matmul
included, the embedding not where it is a table of its own; of a mixture's experts those that this
step's tokens, drawn at random, are really sent to. "kernels" are those of one step that
was launched eagerly, by PyTorch's profiler.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from blink_persistent.engines.cuda.engine import kv_entry_bytes, weight_bytes
from blink_persistent.engines.cuda.provisioned import CudaProvisioned
from blink_persistent.gpu.structs import SamplingRow
from blink_persistent.graph_grid import DECODE, PREFILL, GraphGrid, GraphKey
from blink_persistent.testing.cuda_harness import CudaHarness, cuda_version, provision
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

BANDWIDTH = 4.58e12  # bytes a second, read
ROWS = (1, 16, 64)
CONTEXT_LENGTH = 2048
PREFILLS = ((1, 1024), (8, 2048))
STEPS, RUNS = 50, 5
ACTIVE = 1  # of a sampling row's flags


def fill_decode(engine: CudaProvisioned, rows: int, context: int) -> None:
    """All rows active, with `context` entries each and one token to come."""
    inputs = engine.inputs[DECODE]
    blocks = -(-(context + 1) // engine.limits.block_size)
    order = torch.randperm(engine.block_count - 1, device="cuda")[: rows * blocks] + 1
    inputs.block_tables[:rows, :blocks] = order.view(rows, blocks).int()
    inputs.token_ids[:rows].random_(engine.limits.vocabulary_size)
    inputs.start_positions[:rows] = context
    inputs.lengths[:rows] = context + 1
    fill_sampling(engine, DECODE, rows)


def fill_prefill(engine: CudaProvisioned, sequences: int, tokens: int) -> None:
    """Prompts of equal length from position 0."""
    inputs, each = engine.inputs[PREFILL], tokens // sequences
    blocks = -(-each // engine.limits.block_size)
    order = torch.randperm(engine.block_count - 1, device="cuda")[: sequences * blocks] + 1
    inputs.block_tables[:sequences, :blocks] = order.view(sequences, blocks).int()
    inputs.start_positions.zero_()
    inputs.lengths[:sequences] = each
    inputs.cu_seqlens[: sequences + 1] = each * torch.arange(sequences + 1, device="cuda").int()
    fill_sampling(engine, PREFILL, sequences)


def fill_sampling(engine: CudaProvisioned, phase: int, count: int) -> None:
    rows = np.zeros(count, SamplingRow)
    rows["flags"] = ACTIVE
    rows["top_p"] = rows["repetition_penalty"] = 1.0
    engine.gpu.put(engine.tables.buffers[phase].sampling, rows)
    torch.cuda.synchronize()


def replay_us(engine: CudaProvisioned, key: GraphKey) -> float:
    """Microseconds of one step, replayed from the host."""
    graph = engine.captured.sources[engine.grid.keys.index(key)]
    found = []
    for _ in range(RUNS + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(STEPS):
            graph.replay()
        end.record()
        end.synchronize()
        found.append(1e3 * start.elapsed_time(end) / STEPS)
    return statistics.median(found[1:])


def kernels_of(engine: CudaProvisioned, key: GraphKey) -> list[dict[str, Any]]:
    """The kernels that take most of a step: calls, microseconds together."""
    with torch.no_grad():
        engine.step(key)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            engine.step(key)
            torch.cuda.synchronize()
    events = sorted(profile.key_averages(), key=lambda e: -e.self_device_time_total)[:14]
    return [{"name": e.key[:70], "calls": e.count, "us": e.self_device_time_total} for e in events]


class CountingKernels:
    """Kernels that also count the experts that a step's tokens are sent to, over all layers."""

    def __init__(self, kernels: Any) -> None:
        self._kernels, self.experts = kernels, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def choose_experts(self, scores: Any, entries: Any, room: Any) -> None:
        self._kernels.choose_experts(scores, entries, room)
        chosen = room.chosen[: len(scores)]
        self.experts += len(chosen[chosen >= 0].unique())


def floor_us(engine: CudaProvisioned, rows: int, context: int) -> float:
    """Microseconds of a step whose inputs lie ready."""
    shape = engine.decoder.architecture
    table = 0 if shape.tied_embeddings else 2 * shape.vocabulary_size * shape.hidden_size
    read = weight_bytes(shape) - table + rows * context * kv_entry_bytes(shape)
    if shape.experts:
        kernels: Any = CountingKernels(engine.decoder.kernels)
        with torch.no_grad():
            replace(engine.decoder, kernels=kernels).decode(engine.inputs[DECODE], rows)
        each = 2 * 3 * shape.hidden_size * shape.intermediate_size
        print("experts touched, of", shape.experts, kernels.experts / shape.layers, flush=True)
        read -= each * (shape.layers * shape.experts - kernels.experts)
    return 1e6 * read / BANDWIDTH


def scheduler_us(engine: CudaProvisioned, rows: int, context: int) -> float:
    """Microseconds of one step of the device's loop; closes the engine."""
    shape = ScriptedShape(
        max_rows=rows,
        context_length=CONTEXT_LENGTH,
        vocabulary_size=engine.limits.vocabulary_size,
    )
    rng = np.random.default_rng(3)
    prompts = rng.integers(0, shape.vocabulary_size, (rows, context)).tolist()
    requests = {
        slot: ScriptedRequest(tuple(prompt), max_tokens=300, ignore_eos=True)
        for slot, prompt in enumerate(prompts)
    }
    with CudaHarness(shape, engine) as harness:
        harness.submit(requests)
        harness.scheduler.launch()
        launches = moment = 0.0
        for until in (40, 240):
            before = launches, moment
            harness.wait_until(
                lambda until=until: harness.ring.field("decode_launches") >= until, "steps"
            )
            launches, moment = harness.ring.field("decode_launches"), time.perf_counter()
        print("retries", harness.ring.field("launch_retries"), "error", harness.scheduler.error())
    return 1e6 * (moment - before[1]) / (launches - before[0])


def measure(model: str, context: int) -> dict[str, Any]:
    grid = GraphGrid(
        tuple(
            [GraphKey(DECODE, rows, rows) for rows in ROWS]
            + [GraphKey(PREFILL, *shape) for shape in PREFILLS]
        )
    )
    options = {"weights": "random", "model": model}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        version = cuda_version(
            Path(directory), engine=options, context_length=CONTEXT_LENGTH, memory_fraction=0.6
        )
        engine = provision(version, grid)
    found: dict[str, Any] = {
        "model": model,
        "context": context,
        "provision_s": round(time.perf_counter() - began, 1),
        "bytes_per_graph": engine.captured.nbytes // len(grid.keys),
        "decode": [],
        "prefill": [],
    }
    for rows in ROWS:
        key = GraphKey(DECODE, rows, rows)
        fill_decode(engine, rows, context)
        step, floor = replay_us(engine, key), floor_us(engine, rows, context)
        row = {"rows": rows, "replay_us": step, "floor_us": floor, "share": floor / step}
        print(model, {name: round(value, 3) for name, value in row.items()}, flush=True)
        found["decode"].append({**row, "kernels": kernels_of(engine, key)})
    for sequences, tokens in PREFILLS:
        key = GraphKey(PREFILL, sequences, tokens)
        fill_prefill(engine, sequences, tokens)
        row = {"sequences": sequences, "tokens": tokens, "replay_us": replay_us(engine, key)}
        print(model, row, flush=True)
        found["prefill"].append({**row, "kernels": kernels_of(engine, key)})
    for phase in (DECODE, PREFILL):
        engine.inputs[phase].lengths.zero_()
    engine.reset()
    found["scheduler"] = {"rows": ROWS[-1], "step_us": scheduler_us(engine, ROWS[-1], context)}
    print(model, found["scheduler"], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--context", type=int, default=1024)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for model in arguments.model:
        found = measure(model, arguments.context)
        path = arguments.output / f"steps-{model}.json"
        path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
