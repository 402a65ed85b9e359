"""Decode attention by its tilings, and the sampler by what it is asked, at Llama-3-8B's shape.

    python tests/bench/gpu/engine_kernels.py OUTPUT_DIRECTORY

Method: each case is captured as a graph and replayed; the median of 5 runs of 20 replays between
two device events, divided by the calls in the graph. Attention: one call for each of 32 layers of
KV pages, 1,024 entries a row in blocks of 64 at random places, so that KV comes from memory and
not from the cache. Sampler: one call over logits drawn from a normal distribution of deviation
2.5, vocabulary 128,256; penalties change the logits with every replay, nothing else does.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from replays import microseconds

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.cuts.choices import DecodeTiling
from blink_persistent.engines.cuda.kernels.fused import FusedKernels
from blink_persistent.engines.cuda.step_tensors import KvCache, device_words
from blink_persistent.gpu.driver import Gpu
from blink_persistent.gpu.engine_buffers import EngineLimits, allocate_engine
from blink_persistent.gpu.structs import SamplingRow
from blink_persistent.graph_grid import DECODE, default_grid
from blink_persistent.samplers.default_cuda import DeviceSampler

SHAPE = ARCHITECTURES["llama-3-8b"]
CONTEXT, BLOCK_SIZE, BLOCKS = 1024, 64, 1200
REPLAYS, RUNS = 20, 5
TILINGS = [
    DecodeTiling(tile=tile, programs=programs, warps=warps, stages=stages)
    for tile, programs, warps, stages in (
        (64, 3, 4, 5),
        (64, 6, 4, 5),
        (64, 4, 4, 3),
        (64, 3, 8, 5),
        (32, 5, 4, 5),
        (32, 10, 4, 5),
        (32, 5, 2, 5),
        (32, 3, 4, 7),
        (32, 6, 4, 3),
        (16, 8, 2, 5),
        (16, 8, 4, 7),
    )
]
SAMPLED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy, 5 log-probabilities": {"logprobs": 6},
    "temperature": {"temperature": 1.0},
    "top_p 0.95": {"temperature": 1.0, "top_p": 0.95},
    "top_k 50, top_p 0.95": {"temperature": 1.0, "top_k": 50, "top_p": 0.95},
    "penalties": {"repetition_penalty": 1.1, "prompt_length": 1000},
}
ACTIVE = 1  # of a sampling row's flags
MAX_ROWS = 64


def attention(rows: int, tiling: DecodeTiling, cache: KvCache) -> dict[str, Any]:
    per_row = CONTEXT // BLOCK_SIZE
    kernels = FusedKernels(
        SHAPE,
        max_rows=rows,
        capacity=2 * CONTEXT,
        processors=131,
        chained=True,
        device="cuda",
        decode=tiling,
    )
    tables = torch.zeros(rows, 2 * per_row, dtype=torch.int32, device="cuda")
    order = torch.randperm(BLOCKS - 1, device="cuda")[: rows * per_row] + 1
    tables[:, :per_row] = order.view(rows, per_row).int()
    lengths = torch.full((rows,), CONTEXT, dtype=torch.int32, device="cuda")
    width = SHAPE.heads * SHAPE.head_dim
    queries = torch.randn(rows, width, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(queries)

    def layers() -> None:
        for number in range(SHAPE.layers):
            kernels.decode_attention(queries, *cache.layer(number), lengths, tables, out)

    us = microseconds(layers, replays=REPLAYS, runs=RUNS) / SHAPE.layers
    kv = rows * CONTEXT * 2 * SHAPE.kv_heads * SHAPE.head_dim * 2
    cut = {name: getattr(tiling, name) for name in DecodeTiling.__slots__}
    return {"rows": rows, **cut, "us": round(us, 2), "TB/s": round(kv / us / 1e6, 2)}


class Samplers:
    """The sampler over logits of its own."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        limits = EngineLimits(
            context_length=2048,
            vocabulary_size=SHAPE.vocabulary_size,
            block_size=BLOCK_SIZE,
            block_count=64,
            eos_token_ids=(2,),
        )
        self.tables = allocate_engine(gpu, default_grid(MAX_ROWS, 16), limits)
        logits = gpu.allocate(4 * MAX_ROWS * SHAPE.vocabulary_size)
        words = device_words(logits, MAX_ROWS, SHAPE.vocabulary_size, device="cuda")
        words.view(torch.float32).normal_(0, 2.5)
        self.prompt = gpu.place(np.arange(1000, dtype=np.int32))
        self.sampler = DeviceSampler(gpu, self.tables, logits)

    def measure(self, rows: int, name: str) -> dict[str, Any]:
        values = np.zeros(rows, SamplingRow)
        values["seed"] = np.arange(rows)
        values["flags"], values["prompt"] = ACTIVE, self.prompt
        for field, value in ({"top_p": 1.0, "repetition_penalty": 1.0} | SAMPLED[name]).items():
            values[field] = value
        self.gpu.put(self.tables.buffers[DECODE].sampling, values)

        def sample() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            self.sampler.record(DECODE, rows, stream)

        us = microseconds(sample, replays=REPLAYS, runs=RUNS)
        return {"rows": rows, "asked": name, "us": round(us, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    found = []
    with Gpu() as gpu:
        samplers = Samplers(gpu)
        torch.cuda.synchronize()
        found += [samplers.measure(rows, name) for rows in (1, 64) for name in SAMPLED]
    cache = KvCache.allocate(SHAPE, BLOCKS, BLOCK_SIZE, device="cuda", dtype=torch.bfloat16)
    cache.pages.normal_()
    found += [attention(rows, tiling, cache) for tiling in TILINGS for rows in (1, 16, 64)]
    for row in found:
        print(*row.values())
    (output / "kernels.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
