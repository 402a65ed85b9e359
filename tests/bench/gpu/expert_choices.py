"""How the products with experts are cut best, by the number of tokens.

    python tests/bench/gpu/expert_choices.py OUTPUT_DIRECTORY --model qwen3-30b-a3b

Method: random weights of `LAYERS` layers in bfloat16, so that they come from memory; scores drawn
anew for each layer. What is timed, by `microseconds` of replays.py, is a layer's share of
the choice, the order by expert and both products, one layer after the other. The floor is the
matrices of the experts really touched / 4.58 TB/s. The first line of a number of tokens is
`expert_tiling`'s own choice.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import triton
from replays import microseconds
from step_bench import PROCESSORS

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.cuts.choices import (
    ExpertTiling,
    expert_blocks,
    expert_tiling,
)
from blink_persistent.engines.cuda.kernels.fused import FusedKernels
from blink_persistent.engines.cuda.step_tensors import Workspace
from blink_server.importers.checkpoint import Architecture

BANDWIDTH = 4.58e12  # bytes a second, read
LAYERS = 8
TOKENS = (1, 16, 64, 256, 1024, 2048)
TILINGS = [
    ExpertTiling(rows=rows, features=features, step=step, stages=stages, warps=warps)
    for rows in (16, 32, 64, 128)
    for features, step, stages, warps in (
        (32, 128, 5, 4), (64, 64, 3, 4), (64, 64, 5, 4), (64, 128, 3, 4), (64, 128, 4, 4),
        (128, 64, 3, 8), (128, 64, 4, 8), (128, 128, 3, 8),
    )
]  # fmt: skip


class Bench:
    """Some layers' experts in memory, and a routing for each."""

    def __init__(self, shape: Architecture) -> None:
        self.shape = shape
        experts, inner, hidden = shape.experts, shape.intermediate_size, shape.hidden_size
        places: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        self.layers = [
            (
                torch.randn(experts, 2 * inner, hidden, **places) / hidden**0.5,
                torch.randn(experts, hidden, inner, **places) / inner**0.5,
            )
            for _ in range(LAYERS)
        ]
        self.entries = torch.arange(max(TOKENS), device="cuda", dtype=torch.int32)

    def measure(self, tokens: int, tiling: ExpertTiling) -> dict[str, float]:
        """Microseconds of a layer, and of its floor; infinite where there is no room for it."""
        shape = self.shape
        pairs = tokens * shape.experts_per_token
        blocks = expert_blocks(pairs, shape.experts, tiling.rows)
        words = {"device": "cuda", "dtype": torch.int32}
        room = replace(
            Workspace.allocate(shape, tokens, 1, device="cuda", dtype=torch.bfloat16).experts,
            order=torch.zeros(blocks * tiling.rows, **words),
            block_experts=torch.zeros(blocks, **words),
        )
        kernels = FusedKernels(
            shape, max_rows=64, capacity=1024, processors=PROCESSORS, chained=False,
            device="cuda", experts=tiling,
        )  # fmt: skip
        torch.manual_seed(tokens)
        x = torch.randn(tokens, shape.hidden_size, device="cuda").bfloat16()
        scores = torch.randn(LAYERS, tokens, shape.experts, device="cuda")
        touched = 0
        for each in scores:
            kernels.choose_experts(each, self.entries[:tokens], room)
            touched += len(room.chosen.unique())

        def step() -> None:
            for each, (gate_up, down) in zip(scores, self.layers, strict=True):
                kernels.choose_experts(each, self.entries[:tokens], room)
                kernels.expert_products(x, gate_up, down, room)

        read = 2 * 3 * shape.hidden_size * shape.intermediate_size * touched / LAYERS
        try:
            us = microseconds(step) / LAYERS
        except triton.runtime.errors.OutOfResources:
            us = float("inf")
        return {"us": us, "floor_us": 1e6 * read / BANDWIDTH, "touched": touched / LAYERS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", default="qwen3-30b-a3b")
    parser.add_argument("--tokens", type=int, action="append")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    bench = Bench(ARCHITECTURES[arguments.model])
    found = []
    for tokens in arguments.tokens or TOKENS:
        pairs = tokens * bench.shape.experts_per_token
        for tiling in [expert_tiling(pairs, bench.shape.experts), *TILINGS]:
            row = {"tokens": tokens, **bench.measure(tokens, tiling), "tiling": asdict(tiling)}
            print(*row.values(), flush=True)
            found.append(row)
    (arguments.output / "experts.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
