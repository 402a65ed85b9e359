"""For which numbers of rows the library's products take longer than for a few more.

    python tests/bench/gpu/library_rows.py OUTPUT_DIRECTORY [--model llama-3-8b]

Method: the products of a model's layers by PyTorch, but for a router's and the experts', as the
engine's steps have them: captured as a graph, by kernels that cuBLAS chooses for a GPU with a
multiprocessor less, which is the scheduler's. A graph multiplies random activations by the weights
of several layers, one after the other, so that they come from memory; the least of three replays in
a row counts, by device events between them, divided by the weights. For each weight it prints the
rows for which more take at least a tenth less time, and the fewest that come within a hundredth of
the best of those. What is printed last are lines of the table in kernels/cuts/hopper_library.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import torch
from replays import captured

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.cuts.choices import Shape
from blink_persistent.engines.cuda.kernels.cuts.hopper_library import faster_rows
from blink_persistent.engines.cuda.kernels.cuts.likely_cuts import APART, step_products
from blink_persistent.engines.cuda.library import leave_multiprocessors, load_products
from blink_persistent.engines.cuda.provisioned import SCHEDULERS_PROCESSORS

MODELS = ("llama-3-8b", "phi-4", "qwen3-32b", "qwen3-30b-a3b")
ROWS = (*range(72, 1089, 8), *range(1104, 2113, 16))
WEIGHTS, BYTES = (2, 12), 600e6  # least and most of a graph, and how many fill the cache often
REPLAYS = 3


class Bench:
    """Weights of one shape, and the time of a product with one of them."""

    def __init__(self, shape: Shape) -> None:
        (size, depth), (least, most) = shape, WEIGHTS
        count = max(least, min(most, int(BYTES // (2 * size * depth))))
        places = {"device": "cuda", "dtype": torch.bfloat16}
        self.weights = [
            torch.empty(shape, **places).normal_(0.0, depth**-0.5) for _ in range(count)
        ]
        self.x = torch.randn(max(ROWS), depth, **places)
        self.out = torch.empty(max(ROWS), size, **places)
        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())  # what is read is made there

    def microseconds(self, rows: int) -> float:
        x, out = self.x[:rows], self.out[:rows]

        def work() -> None:
            for weight in self.weights:
                torch.mm(x, weight.t(), out=out)

        events = [torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + 1)]
        with torch.cuda.stream(self.stream):
            graph = captured(work)
            graph.replay()  # the next ones wait for it, not for their launch
            events[0].record()
            for event in events[1:]:
                graph.replay()
                event.record()
            events[-1].synchronize()
        least = min(start.elapsed_time(end) for start, end in itertools.pairwise(events))
        return round(1e3 * least / len(self.weights), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", action="append", choices=list(ARCHITECTURES))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    load_products(torch.device("cuda", 0))
    leave_multiprocessors(SCHEDULERS_PROCESSORS)
    print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}", flush=True)
    found: list[dict[str, object]] = []
    table: list[str] = []
    try:
        for model in arguments.model or MODELS:
            for product in step_products(ARCHITECTURES[model]):
                if product.name in APART:
                    continue
                bench = Bench(product.shape)
                us = {rows: bench.microseconds(rows) for rows in ROWS}
                faster = faster_rows(us)
                found.append(
                    {"model": model, "name": product.name, "shape": product.shape, "us": us}
                )
                print(model, product.name, product.shape, len(bench.weights), "weights")
                for rows, more in faster.items():
                    print(f"    {rows} rows {us[rows]} us, {more} rows {us[more]} us")
                print("   ", *(f"{rows}:{time:.0f}" for rows, time in us.items()), flush=True)
                table.append(f"    {product.shape}: {faster},")
    finally:
        (arguments.output / "library-rows.json").write_text(json.dumps(found, indent=1) + "\n")
        print(*table, sep="\n")


if __name__ == "__main__":
    main()
