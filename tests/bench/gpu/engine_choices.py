"""Which way of each product and of attention is the fastest in a decode step.

    python tests/bench/gpu/engine_choices.py OUTPUT_DIRECTORY [--model llama-3-8b]

Method: the model and the inputs of step_bench.py. A case is captured as a graph and replayed; the
median of 3 runs of 8 replays between two device events. "product": the product of every layer, one
after the other, so that weights come from memory, the engine's own chained as in a step; each
result is compared with PyTorch's first. "step": a whole decode step but for the sampler. Choices
are made greedily: the best three cuts of each product are tried in the step, streamed or, from 16
rows, wide, then the attention's tilings, then attention and norm in CUDA C++, then the stages of
products that read ahead; each keeps what won before it. With --known the tables' products that read
ahead are taken, of more rows where these have none; the vocabulary's, attention, norm and stages
are chosen. What is printed last are lines of the tables in kernels/cuts/hopper.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from ahead_choices import OneByOne, attentions_for, wide_offers, with_other_stages
from step_bench import MAX_ROWS, PROCESSORS, Bench, kernels_of

from blink_persistent.engines.cuda.kernels.ahead.attention import AheadAttention
from blink_persistent.engines.cuda.kernels.ahead.primed_norm import primed_norm_for
from blink_persistent.engines.cuda.kernels.cuts.choices import (
    ROW_TILES,
    AheadCut,
    AnyAttention,
    AnyCut,
    Cut,
    DecodeTiling,
    Shape,
    row_tile,
)
from blink_persistent.engines.cuda.kernels.cuts.hopper import measured_choices
from blink_persistent.engines.cuda.kernels.cuts.likely_cuts import step_products
from blink_persistent.gpu.driver import Gpu

HOPPER = (9, 0)
EVEN = 128  # programs, or a multiple: as many on each processor but for three
ROWS = (1, 16, 32, 64)
MODELS = ("llama-3-8b", "qwen3-32b", "qwen3-30b-a3b", "phi-4")
SPLITS = (1, 2, 3, 4, 7, 8, 9)
PIPELINES = {  # step, stages, warps by tile and whether it is gated
    (64, False): ((128, 5, 4), (128, 3, 4), (64, 8, 4), (64, 4, 4)),
    (128, False): ((64, 5, 4), (64, 8, 4), (128, 4, 8), (64, 8, 8)),
    (64, True): ((64, 4, 4), (64, 6, 4), (128, 3, 4)),
    (128, True): ((64, 4, 8), (64, 5, 8), (64, 6, 8), (128, 3, 8)),
}
TILINGS = [
    DecodeTiling(tile=tile, programs=programs, warps=warps, stages=stages)
    for tile, programs, warps, stages in (
        (32, 5, 4, 5), (32, 8, 4, 3), (64, 3, 4, 5), (64, 4, 4, 3), (64, 3, 8, 4), (64, 2, 8, 4),
        (64, 4, 8, 3), (64, 6, 4, 3),
    )
]  # fmt: skip


def candidates(name: str, shape: Shape) -> Iterator[Cut]:
    """Cuts of an even number of programs; of any number for the head and small shapes."""
    gated = name == "gate_up"
    size, depth = shape[0] // (2 if gated else 1), shape[1]
    uneven = name == "head" or size * depth < 1 << 23
    for splits in (1,) if gated or name in ("head", "router") else SPLITS:
        even = {size * splits // (EVEN * each) for each in (1, 2, 3, 4)}
        for features in {64, 128} if uneven else even:
            if not 48 <= features <= 128 or (size * splits % (EVEN * features) and not uneven):
                continue
            for step, stages, warps in PIPELINES[64 if features <= 64 else 128, gated]:
                cut = Cut(features, step, splits, stages, warps)
                if cut.fits(size, depth):
                    yield cut


class Search:
    """Goes from choice to choice, each kept if the step of so many rows gets shorter by it."""

    def __init__(self, bench: Bench, gpu: Gpu, rows: int, note: Callable[..., None]) -> None:
        tile = row_tile(rows)
        assert tile is not None
        self.bench, self.gpu, self.rows, self.tile, self.note = bench, gpu, rows, tile, note
        self.product = {product.name: product for product in step_products(bench.shape)}
        self.cuts: dict[Any, AnyCut] = {}
        self.tiling = DecodeTiling()
        self.attention: AnyAttention | None = None
        self.norm = False
        self.made: dict[AnyAttention, AheadAttention] = {}
        self.primed_norm = primed_norm_for(gpu, bench.shape.hidden_size)
        self.least = float("inf")

    def us(self, **others: Any) -> float:
        """Of a step with `others` in place of what was chosen of cuts, tiling, attention, norm."""
        chosen = {"cuts": self.cuts, "tiling": self.tiling}
        chosen |= {"attention": self.attention, "norm": self.norm, **others}
        bench, attention = self.bench, chosen["attention"]
        bench.primed_norm = self.primed_norm if chosen["norm"] else None
        bench.ahead_attention = None if attention is None else self.ahead(attention)
        found = bench.step_us(self.rows, bench.kernels(chosen["cuts"], chosen["tiling"]))
        bench.ahead_attention = bench.primed_norm = None
        return found

    def ahead(self, attention: AnyAttention) -> AheadAttention:
        if attention not in self.made:
            sizes = {"max_rows": MAX_ROWS, "processors": PROCESSORS}
            self.made[attention] = AheadAttention(
                self.gpu, self.bench.shape, device="cuda", cuts={self.tile: attention}, **sizes
            )
        return self.made[attention]

    def key(self, name: str) -> tuple[Shape, int]:
        """Of a product in the tables."""
        return self.product[name].shape, self.tile

    def attempt(self, name: str, cut: AnyCut | None) -> None:
        key = self.key(name)
        cuts = {k: v for k, v in self.cuts.items() if k != key} | ({key: cut} if cut else {})
        us = self.us(cuts=cuts)
        self.note("step", rows=self.rows, name=name, us=round(us, 1), cut=cut and asdict(cut))
        if us < self.least:
            self.least, self.cuts = us, cuts

    def attempt_tiling(self, tiling: DecodeTiling) -> None:
        us = self.us(tiling=tiling)
        self.note("tiling", rows=self.rows, us=round(us, 1), tiling=asdict(tiling))
        if us < self.least:
            self.least, self.tiling = us, tiling

    def attempt_attention(self, attention: AnyAttention | None, *, norm: bool) -> None:
        """In place of Triton's, which None stands for."""
        us = self.us(attention=attention, norm=norm)
        self.note("attention", rows=self.rows, us=round(us, 1), primed_norm=norm,
                  cut=attention and repr(attention))  # fmt: skip
        if us < self.least:
            self.least, self.attention, self.norm = us, attention, norm

    def attentions(self) -> None:
        """Those in CUDA C++, each with either norm."""
        offers = attentions_for(self.bench.shape, self.tile)
        found = [(None, True), *((offer, norm) for offer in offers for norm in (False, True))]
        for attention, norm in found:
            self.attempt_attention(attention, norm=norm)

    def vocabulary(self) -> None:
        for cut in wide_offers(*self.key("head"), gated=False, in_parts=False):
            self.attempt("head", cut)

    def stages(self) -> None:
        """Of products that read ahead, now that it is known what stands beside them."""
        for name in self.bench.names * 2:
            cut = self.cuts.get(self.key(name))
            if isinstance(cut, AheadCut):
                for offer in with_other_stages(cut, self.tile):
                    self.attempt(name, offer)

    def take_known(self) -> bool:
        """Where a number of rows has no products that read ahead, those of more rows."""
        found = measured_choices(self.bench.shape, HOPPER)
        for other in ROW_TILES[ROW_TILES.index(self.tile) :]:
            cuts = {
                self.key(name): cut
                for name in self.bench.names
                if (cut := found.cuts.get((self.product[name].shape, other))) is not None
            }
            if any(isinstance(cut, AheadCut) for cut in cuts.values()):
                self.cuts = cuts
                self.least = self.us()
                self.note("known step", rows=self.rows, us=round(self.least, 1), tile=other)
                return True
        return False

    def offers(self, name: str) -> Iterator[AnyCut | None]:
        product = self.product[name]
        options = {"gated": product.gated, "in_parts": product.in_parts}
        yield None
        yield from candidates(name, product.shape)
        yield from wide_offers(product.shape, self.tile, **options)

    def products(self) -> None:
        """Each alone, cut in every way and the library's; the best three then in the step."""
        best = {}
        for name in self.bench.names:
            tried = self.offers(name)
            pairs = [(self.bench.product_us(name, self.rows, cut), cut) for cut in tried]
            best[name] = sorted(pairs, key=lambda pair: pair[0])
            for us, cut in best[name]:
                self.note("product", rows=self.rows, name=name, us=round(us, 2),
                          cut=cut and asdict(cut))  # fmt: skip
        self.cuts = {
            self.key(name): cut for name in self.bench.names for cut in [best[name][0][1]] if cut
        }
        for name in self.bench.names:
            for _, cut in best[name][:3]:
                self.attempt(name, cut)

    def run(self, *, known: bool) -> None:
        """`known`: from what the tables have, where they have anything."""
        if known and self.take_known():
            self.vocabulary()
        else:
            us = self.us()
            self.note("library step", rows=self.rows, us=round(us, 1))
            self.products()
            for tiling in TILINGS:
                self.attempt_tiling(tiling)
        self.attentions()
        self.stages()
        kernels = self.bench.kernels(self.cuts, self.tiling, chained=False)
        unchained = self.bench.step_us(self.rows, kernels)
        self.note("chosen", rows=self.rows, us=round(self.least, 1), unchained=round(unchained, 1),
                  tiling=asdict(self.tiling), attention=self.attention and repr(self.attention),
                  primed_norm=self.norm)  # fmt: skip
        self.note("kernels", kernels=kernels_of(self.bench.step(self.rows, kernels)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", action="append", help=f"by default {', '.join(MODELS)}")
    parser.add_argument("--rows", type=int, action="append")
    parser.add_argument(
        "--known", action="store_true", help="with the layers' products of the tables, if any"
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []
    table: list[str] = []
    torch.cuda.init()
    with Gpu() as gpu:
        try:
            for model in arguments.model or MODELS:

                def note(kind: str, model: str = model, **row: Any) -> None:
                    found.append({"model": model, "kind": kind, **row})
                    print(model, kind, *row.values(), flush=True)

                rows, known = arguments.rows or list(ROWS), arguments.known
                table += measure(model, gpu, rows, note, known=known)
                torch.cuda.empty_cache()  # the next one needs the memory
        finally:
            (arguments.output / "choices.json").write_text(json.dumps(found, indent=1) + "\n")
            print(*table, sep="\n")
            torch.cuda.synchronize()


def measure(
    model: str, gpu: Gpu, rows: list[int], note: Callable[..., None], *, known: bool
) -> list[str]:
    """Lines of the tables."""
    ahead = OneByOne(gpu)
    bench, lines = Bench(model, lambda cuts: ahead), []
    heads = bench.shape.heads, bench.shape.kv_heads, bench.shape.head_dim
    for count in rows:
        search = Search(bench, gpu, count, note)
        search.run(known=known)
        lines += [f"    {key}: {cut}," for key, cut in search.cuts.items()]
        lines.append(f"    {(heads, search.tile)}: {search.attention or search.tiling},")
    return lines


if __name__ == "__main__":
    main()
