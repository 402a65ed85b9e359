"""Prefill attention by its tilings and by the lengths of prompts, at the shapes of some models.

    python tests/bench/gpu/prefill_choices.py OUTPUT_DIRECTORY --model llama-3-8b

Method: as `engine_kernels.py`, one call for each of 32 layers of KV pages, blocks of 64 at random
places. TFLOP/s count the entries that each query sees, 4 an entry and element of a query; what a
tile computes beyond them is waste. "default" is the tiling that a step without pages would take.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from engine_kernels import REPLAYS, RUNS
from replays import microseconds
from step_work import Chunk

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.attention import Attention
from blink_persistent.engines.cuda.kernels.cuts.choices import PageTiling, PrefillTiling
from blink_server.importers.checkpoint import Architecture

LAYERS, BLOCK_SIZE, BLOCKS = 32, 64, 512
PROCESSORS = torch.cuda.get_device_properties(0).multi_processor_count - 1
TILINGS: dict[str, PrefillTiling | PageTiling | None] = {
    "default": None,
    **{
        f"{queries} queries, {warps} warps, {stages} stages": PrefillTiling(queries, warps, stages)
        for queries, warps in ((128, 8), (64, 4), (32, 4))
        for stages in (2, 3)
    },
    **{f"pages, {stages} stages": PageTiling(stages) for stages in (2, 3)},
}
STEPS = [
    [Chunk(0, tokens) for tokens in lengths]
    for lengths in (
        (1024,),
        (2048,),
        (256,) * 8,
        (3, 61, 90, 150, 170, 180, 184, 186),
        (15, 100, 145, 200, 250, 300, 400, 638),
        (1800, 100, 60, 40, 20, 16, 8, 4),
    )
] + [[Chunk(start, tokens)] for start in (512, 7680) for tokens in (256, 512, 1024)]


class Bench:
    """One step's inputs, over pages of their own in every layer."""

    def __init__(self, shape: Architecture, chunks: Sequence[Chunk]) -> None:
        self.shape = shape
        tokens = sum(chunk.tokens for chunk in chunks)
        floats = {"dtype": torch.bfloat16, "device": "cuda"}
        pages = (LAYERS, 2, BLOCKS, shape.kv_heads, BLOCK_SIZE, shape.head_dim)
        self.pages = torch.randn(pages, **floats)
        self.queries = torch.randn(tokens, shape.heads * shape.head_dim, **floats)
        self.out = torch.empty_like(self.queries)
        blocks = max(-(-(chunk.start + chunk.tokens) // BLOCK_SIZE) for chunk in chunks)
        order = torch.randint(1, BLOCKS, (len(chunks), blocks), device="cuda")
        self.tables = order.int()
        self.starts = torch.tensor([chunk.start for chunk in chunks], device="cuda").int()
        ends = [sum(chunk.tokens for chunk in chunks[:i]) for i in range(len(chunks) + 1)]
        self.ends = torch.tensor(ends, device="cuda").int()
        self.flop = 4 * shape.heads * shape.head_dim * sum(chunk.entries for chunk in chunks)

    def measure(self, tiling: PrefillTiling | PageTiling | None) -> dict[str, Any]:
        """Microseconds of one layer, and how fast that is."""
        attention = Attention(
            self.shape,
            max_rows=1,
            capacity=self.tables.shape[1] * BLOCK_SIZE,
            processors=PROCESSORS,
            chain=lambda tokens: {"CHAINED": False, "launch_pdl": False},
            device="cuda",
            tilings={},
            always=None,
            prefill=tiling,
        )

        def work() -> None:
            for keys, values in self.pages:
                attention.prefill_attention(
                    self.queries, keys, values, self.starts, self.ends, self.tables, self.out
                )

        us = microseconds(work, replays=REPLAYS, runs=RUNS) / LAYERS
        return {"us": us, "tflop_per_s": self.flop / us / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", action="append", choices=ARCHITECTURES, required=True)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for model in options.model:
        found = []
        for chunks in STEPS:
            bench = Bench(ARCHITECTURES[model], chunks)
            lengths = [(chunk.start, chunk.tokens) for chunk in chunks]
            for name, tiling in TILINGS.items():
                row = {"chunks": lengths, "tiling": name, **bench.measure(tiling)}
                print(model, row, flush=True)
                found.append(row)
        path = options.output / f"prefill-choices-{model}.json"
        path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
