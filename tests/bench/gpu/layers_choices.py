"""How the kernel that makes all layers of a decode step is cut best; what other kernels take.

    python tests/bench/gpu/layers_choices.py OUTPUT_DIRECTORY [--model llama-3-8b] [--windows]

Method: the model and the inputs of step_bench.py; a step but for the sampler, captured as a graph
and replayed, the median of 3 runs of 8 replays between two device events. "others": with the
kernels that a model has without this one. "layers": with it, first as the tables cut it, then each
of its `early`, `flight` and `paged` in turn, each kept if the step gets shorter by it. --windows:
before that windows of every number that fit, with as many stages as there is room for. --cut: these
alone, each `stages,qkv,output,gate_up,down,early,flight,paged`. Logits are compared with those of
the other kernels first.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from replays import microseconds
from step_bench import CONTEXT, MAX_ROWS, PROCESSORS, Bench
from step_work import Chunk, floor_us

from blink_persistent.engines.cuda.kernels.ahead.attention import AheadAttention
from blink_persistent.engines.cuda.kernels.ahead.layers import AllLayers
from blink_persistent.engines.cuda.kernels.ahead.primed_norm import primed_norm_for
from blink_persistent.engines.cuda.kernels.ahead.products import ahead_on
from blink_persistent.engines.cuda.kernels.cuts.hopper import HOPPER_LAYERS, measured_choices
from blink_persistent.engines.cuda.kernels.cuts.layers_cut import (
    LayerFeatures,
    LayersCut,
    layers_fit,
)
from blink_persistent.engines.cuda.kernels.cuts.likely_choices import likely_choices
from blink_persistent.engines.cuda.model import Decoder
from blink_persistent.gpu.driver import Gpu

HOPPER = (9, 0)
MODELS, ROWS = ("llama-3-8b", "qwen3-8b"), (1, 4, 8, 16)
BFLOAT16 = 0.2  # ||difference|| / ||expected|| that its arithmetic may make in many layers
LEAST_STAGES, MOST_STAGES = 4, 9


class Search:
    """Of one model."""

    def __init__(self, gpu: Gpu, model: str, found: list[dict[str, Any]]) -> None:
        self.gpu, self.model, self.found = gpu, model, found
        self.bench = bench = Bench(model, ahead_on(gpu))
        assert layers_fit(bench.shape, HOPPER, PROCESSORS)
        self.features = LayerFeatures.of(bench.shape)
        known = measured_choices(bench.shape, HOPPER, PROCESSORS)
        choices = likely_choices(bench.shape, known, HOPPER, PROCESSORS)
        sizes: dict[str, Any] = {"max_rows": MAX_ROWS, "processors": PROCESSORS, "device": "cuda"}
        bench.ahead_attention = AheadAttention(gpu, bench.shape, cuts=choices.attentions, **sizes)
        bench.primed_norm = primed_norm_for(gpu, bench.shape.hidden_size, choices.norms)
        self.kernels = bench.kernels(choices.cuts, None)

    def note(self, kind: str, **row: Any) -> None:
        self.found.append({"model": self.model, "kind": kind, **row})
        print(self.model, kind, *row.values(), flush=True)

    def decoder(self, most: int, cut: LayersCut | None) -> Decoder:
        bench = self.bench
        parts = bench.weights, bench.rotary, bench.cache, bench.work
        layers = None if cut is None else AllLayers(self.gpu, bench.shape, *parts, {most: cut})
        return Decoder(bench.shape, *parts, self.kernels, layers)

    def logits(self, rows: int, decoder: Decoder) -> torch.Tensor:
        with torch.no_grad():
            return decoder.decode(self.bench.inputs, rows).clone()

    def us(self, rows: int, most: int, cut: LayersCut | None) -> float:
        """Of a step; infinite where the kernel does not compile, or computes something else."""
        try:
            decoder = self.decoder(most, cut)
            if cut is not None:
                expected = self.logits(rows, self.decoder(most, None))
                error = (self.logits(rows, decoder) - expected).norm() / expected.norm()
                assert float(error) < BFLOAT16, f"off by {float(error)}"
            us = microseconds(lambda: decoder.decode(self.bench.inputs, rows))
        except Exception as error:  # the next one may go
            self.note("failed", rows=rows, cut=str(cut), error=f"{error}"[:400])
            return float("inf")
        chunks = [Chunk(CONTEXT, 1)] * rows
        share = floor_us(self.bench.shape, chunks, rows) / us
        self.note(
            "others" if cut is None else "layers",
            **{"rows": rows, "us": round(us, 1), "share": round(share, 3)},
            cut=cut and asdict(cut),
        )
        return us

    def run(self, rows: int, given: list[LayersCut], *, windows: bool) -> str | None:
        """The best cut's line of the table."""
        most = min(most for most in HOPPER_LAYERS if rows <= most)
        self.us(rows, most, None)
        best = HOPPER_LAYERS[most]
        least = self.us(rows, most, best)
        offers = given or (list(self.windows(most, best)) if windows else [])
        for cut in offers:
            if cut.fits(most, self.features) and (us := self.us(rows, most, cut)) < least:
                best, least = cut, us
        if given:
            return None
        for name in ("early", "paged", "flight", "early"):
            for value in range(1, best.stages + 1):
                cut = replace(best, **{name: value})
                near = abs(value - getattr(best, name)) <= 2 or value == best.stages
                if cut != best and near and (us := self.us(rows, most, cut)) < least:
                    best, least = cut, us
        self.note("chosen", rows=rows, us=round(least, 1), cut=asdict(best))
        return f"    {most}: {best},"

    def windows(self, most: int, known: LayersCut) -> Iterator[LayersCut]:
        """Whose stages of all products are about as large as each other."""
        made = set()
        for qkv in range(1, 9):
            for output in range(1, 9):
                for gate_up in (1, 2):
                    cut = replace(known, qkv=qkv, output=output, gate_up=gate_up, down=output)
                    cut = self.with_most_stages(most, cut)
                    if cut is not None and self.is_even(most, cut):
                        made.add(cut)
        yield from sorted(made, key=lambda cut: (-cut.stages, cut.windows))

    def with_most_stages(self, most: int, cut: LayersCut) -> LayersCut | None:
        for stages in range(MOST_STAGES, LEAST_STAGES - 1, -1):
            offer = replace(cut, stages=stages, flight=stages)
            if offer.fits(most, self.features):
                return offer
        return None

    def is_even(self, most: int, cut: LayersCut) -> bool:
        """Is no more than a quarter of any stage left empty?"""
        whole, of = cut.stage_bytes(most, self.features), self.features
        rows = of.qkv + most, of.output + most, 2 * of.gate_up + most, of.down + most
        return all(128 * n * r > 0.75 * whole for n, r in zip(cut.windows, rows, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", action="append", help=f"by default {', '.join(MODELS)}")
    parser.add_argument("--rows", type=int, action="append")
    parser.add_argument("--cut", action="append", default=[], help="of this alone")
    parser.add_argument("--windows", action="store_true", help="also of other windows")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    given = [LayersCut(*map(int, text.split(","))) for text in arguments.cut]
    found: list[dict[str, Any]] = []
    torch.cuda.init()
    with Gpu() as gpu:
        try:
            for model in arguments.model or MODELS:
                search = Search(gpu, model, found)
                for rows in arguments.rows or ROWS:
                    line = search.run(rows, given, windows=arguments.windows)
                    if line is not None:
                        print(line, flush=True)
                del search
                torch.cuda.empty_cache()  # the next one needs the memory
        finally:
            (arguments.output / "layers.json").write_text(json.dumps(found, indent=1) + "\n")
            torch.cuda.synchronize()


if __name__ == "__main__":
    main()
