"""Decode and prefill steps of the engine `cuda` against the memory bandwidth floor.

    python tests/bench/gpu/engine_steps.py OUTPUT_DIRECTORY --model llama-3-8b

Method: random weights at the model's full shape in bfloat16. Every row has `--context` entries
of KV in blocks of its own, drawn at random, and samples greedily. "replay": the captured graph of a
key replayed back to back from the host between two device events, the median of 5 runs of 50 steps,
or of 10 where prompts are read. "scheduler": the same graphs launched by the persistent scheduler
on the device, from the engine's steps between two reads of the ring's counters, with requests that
all decode; their KV grows by one entry a step. The floor is (weights read + KV read) / 4.58 TB/s,
the vocabulary matmul included, the embedding not where it is a table of its own; of a mixture's
experts those that this step's tokens, drawn at random, are really sent to; or its arithmetic at 989
TFLOP/s, where that takes longer. Prefill, of one prompt and of prompts of different length, also in
TFLOP/s by the formula of `step_work.py`. "mixed": a chunk that continues a prompt of 512 tokens
beside decode rows, next to the replays of the same as two steps. "kernels" are those of one step
that was launched eagerly, by PyTorch's profiler.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from replays import replay_us
from step_inputs import fill_decode, fill_prefill
from step_work import Chunk, CountingKernels, floor_us, flop

from blink_persistent.engines.cuda import provisioned
from blink_persistent.engines.cuda.kernels.cuts.choices import StepChoices
from blink_persistent.engines.cuda.kernels.cuts.layers_cut import LayersCut
from blink_persistent.engines.cuda.model import Decoder
from blink_persistent.engines.cuda.provisioned import CudaProvisioned, step_choices
from blink_persistent.graph_grid import DECODE, MIXED, PREFILL, GraphGrid, GraphKey
from blink_persistent.testing.cuda_harness import CudaHarness, cuda_version, provision
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

ROWS = (1, 16, 64)
CONTEXT_LENGTH = 2048
PREFILLS = (
    (1024,),
    (2048,),
    (256,) * 8,
    (3, 61, 90, 150, 170, 180, 184, 186),
    (15, 100, 145, 200, 250, 300, 400, 638),
    (1800, 100, 60, 40, 20, 16, 8, 4),
)  # tokens of each prompt; 1,024 or 2,048 together
CHUNKS, CHUNK_START = (240, 256, 512, 1024), 512
MIXED_STEPS = (
    *((240, 16), (256, 16), (256, 64)),
    *((512, 16), (512, 64), (1024, 16), (1024, 64)),
)  # tokens of the chunk, rows; products may like 256 in all better than 272
STEPS = {DECODE: 50, PREFILL: 10, MIXED: 10}
RUNS = 5
PARTS = ("decode", "prefill", "mixed", "scheduler")


def step_us(engine: CudaProvisioned, key: GraphKey) -> float:
    """Microseconds of one step, replayed from the host."""
    graph = engine.captured.sources[engine.grid.keys.index(key)]
    return replay_us(graph, replays=STEPS[key.phase], runs=RUNS)


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


def touched_experts(engine: CudaProvisioned, step: Callable[[Decoder], Any]) -> int | None:
    """Of the step whose inputs lie ready, over all layers; None for a model without experts."""
    shape = engine.decoder.architecture
    if not shape.experts:
        return None
    kernels: Any = CountingKernels(engine.decoder.kernels)
    with torch.no_grad():
        step(replace(engine.decoder, kernels=kernels))
    print("experts touched, of", shape.experts, kernels.experts / shape.layers, flush=True)
    return int(kernels.experts)


def measure_decode(engine: CudaProvisioned, rows: int, context: int) -> dict[str, Any]:
    key = GraphKey(DECODE, rows, rows)
    fill_decode(engine, rows, context)
    step = step_us(engine, key)
    experts = touched_experts(engine, lambda d: d.decode(engine.inputs[DECODE], rows))
    chunks = [Chunk(context, 1)] * rows
    floor = floor_us(engine.decoder.architecture, chunks, rows, experts)
    row = {"rows": rows, "replay_us": step, "floor_us": floor, "share": floor / step}
    return shown(row) | {"kernels": kernels_of(engine, key)}


def measure_prefill(engine: CudaProvisioned, chunks: Sequence[Chunk]) -> dict[str, Any]:
    tokens, shape = sum(c.tokens for c in chunks), engine.decoder.architecture
    key = GraphKey(PREFILL, len(chunks), tokens)
    fill_prefill(engine, chunks)
    step = step_us(engine, key)
    work = flop(shape, chunks, len(chunks))
    row = {
        **{"sequences": len(chunks), "tokens": tokens, "longest": max(c.tokens for c in chunks)},
        **{"replay_us": step, "tflop_per_s": work / step / 1e6},
    }
    return shown(row) | {"kernels": kernels_of(engine, key)}


def measure_mixed(engine: CudaProvisioned, tokens: int, rows: int, context: int) -> dict[str, Any]:
    """A chunk of a longer prompt, and rows that decode beside it."""
    key, chunk = GraphKey(MIXED, 1, tokens, rows), Chunk(CHUNK_START, tokens)
    fill_decode(engine, rows, context)
    fill_prefill(engine, [chunk])
    prefill, decode = engine.inputs[PREFILL], engine.inputs[DECODE]
    experts = touched_experts(engine, lambda d: d.mixed(prefill, decode, 1, tokens, rows))
    all_chunks = [chunk] + [Chunk(context, 1)] * rows
    floor = floor_us(engine.decoder.architecture, all_chunks, 1 + rows, experts)
    step = step_us(engine, key)
    in_turns = sum(
        step_us(engine, k) for k in (GraphKey(PREFILL, 1, tokens), GraphKey(DECODE, rows, rows))
    )
    row = {
        **{"tokens": tokens, "rows": rows, "replay_us": step, "floor_us": floor},
        **{"share": floor / step, "in_turns_us": in_turns, "saved_us": in_turns - step},
    }
    return shown(row) | {"kernels": kernels_of(engine, key)}


def shown(row: dict[str, Any]) -> dict[str, Any]:
    print({name: round(value, 3) for name, value in row.items()}, flush=True)
    return row


def scheduler_us(engine: CudaProvisioned, rows: int, context: int) -> float:
    """Microseconds of one step of the device's loop; closes the engine."""
    shape = ScriptedShape(
        max_rows=rows,
        context_length=context_length(context),
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
        for until in (80, 280):  # all prompts are read by then
            before = launches, moment
            harness.wait_until(
                lambda until=until: harness.ring.field("decode_launches") >= until, "steps"
            )
            launches, moment = harness.ring.field("decode_launches"), time.perf_counter()
        print("retries", harness.ring.field("launch_retries"), "error", harness.scheduler.error())
    return 1e6 * (moment - before[1]) / (launches - before[0])


def grid_to_measure() -> GraphGrid:
    """A key for every step."""
    prefills = {(len(lengths), sum(lengths)) for lengths in PREFILLS}
    prefills |= {(1, chunk) for chunk in CHUNKS}
    keys = [GraphKey(DECODE, rows, rows) for rows in ROWS]
    keys += [GraphKey(PREFILL, *shape) for shape in sorted(prefills)]
    keys += [GraphKey(MIXED, 1, chunk, rows) for chunk, rows in MIXED_STEPS]
    return GraphGrid(tuple(keys))


def context_length(context: int) -> int:
    """Of a version, whose scheduler's part goes on from so many entries."""
    return max(CONTEXT_LENGTH, 2 * context)


def choices_with(layers: str | None) -> Callable[..., StepChoices]:
    """`step_choices`, but all layers in one kernel as `--layers` says."""

    def choose(*arguments: Any) -> StepChoices:
        found = step_choices(*arguments)
        if layers is None or not found.layers:
            return found
        cuts = [part.split("=") for part in layers.split()] if layers != "none" else []
        given = {int(most): LayersCut(*map(int, cut.split(","))) for most, cut in cuts}
        return replace(found, layers=given)

    return choose


def measure(model: str, context: int, decode_kernels: str, parts: Sequence[str]) -> dict[str, Any]:
    grid = grid_to_measure()
    options = {"weights": "random", "model": model, "decode_kernels": decode_kernels}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        version = cuda_version(
            Path(directory),
            engine=options,
            context_length=context_length(context),
            memory_fraction=0.6,
        )
        engine = provision(version, grid)
    found: dict[str, Any] = {
        "model": model,
        "context": context,
        "decode_kernels": decode_kernels,
        "provision_s": round(time.perf_counter() - began, 1),
        "bytes_per_graph": engine.captured.nbytes // len(grid.keys),
    }
    print(model, found, flush=True)
    if "decode" in parts:
        found["decode"] = [measure_decode(engine, rows, context) for rows in ROWS]
    if "prefill" in parts:
        prompts = [[Chunk(0, tokens) for tokens in lengths] for lengths in PREFILLS]
        continued = [[Chunk(CHUNK_START, tokens)] for tokens in CHUNKS]
        found["prefill"] = [measure_prefill(engine, chunks) for chunks in prompts + continued]
    if "mixed" in parts:
        found["mixed"] = [measure_mixed(engine, *step, context) for step in MIXED_STEPS]
    if "scheduler" not in parts:
        engine.close()
        return found
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
    parser.add_argument("--decode-kernels", default="likely", help="the engine's option")
    parser.add_argument(
        "--layers",
        help='"none", or "8=7,4,6,1,6,2,7,2": in place of the tables\' cuts of all layers in one '
        "kernel, by the most rows",
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="by default all")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    decode = arguments.decode_kernels
    for model in arguments.model:
        with patch.object(provisioned, "step_choices", choices_with(arguments.layers)):
            found = measure(model, arguments.context, decode, arguments.only or PARTS)
        found["layers"] = arguments.layers
        name = f"steps-{decode}" if arguments.layers is None else f"steps-{decode}-other-layers"
        path = arguments.output / f"{name}-{model}.json"
        path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
