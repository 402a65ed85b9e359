"""Products that read ahead beside the library's and the streamed ones, alone, in chains, in steps.

    python tests/bench/gpu/primed_products.py OUTPUT_DIRECTORY [--model llama-3-8b] [--rows 1]

Method: that of engine_choices.py. "product": one product of each layer after the other, each
checked against PyTorch; `share` is that of the floor's speed, the weights at 4.58 TB/s. The
streamed cut is the table's, or the best of a few; the primed cuts are the `--tries` with the least
estimates; wide ones are tried from 16 rows. "chain": a step's products with the norms between them,
without rotation and attention, so that the distance to the products' floor is what the products
lose and what lies between them. "step": a whole decode step but for the sampler. Both with the
library's, the streamed, the primed and the wide products, and with the best of each, those that
read ahead and the best also with the primed norm; unchained too. "attention": the step with the
best products and each cut of attention, Triton's (null: the table's) and those in CUDA C++, with
either norm.
"small kernels with all shared memory" is the shortest step again, with Triton's kernels asking for
the primed ones' share of a multiprocessor's memory, which has to be empty to change its share.
"kernels" are those of the shortest step, launched eagerly. What is printed last are lines of the
table in kernels/cuts/hopper.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from ahead_choices import OneByOne, attentions_for, wide_offers
from engine_choices import MODELS, ROWS, TILINGS, candidates
from replays import microseconds
from step_bench import MAX_ROWS, PROCESSORS, Bench, kernels_of
from triton_kernels import TritonKernels

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.ahead.attention import AheadAttention
from blink_persistent.engines.cuda.kernels.ahead.primed_norm import primed_norm_for
from blink_persistent.engines.cuda.kernels.ahead.products import AheadProducts
from blink_persistent.engines.cuda.kernels.cuts.choices import (
    AnyAttention,
    AnyCut,
    Cut,
    DecodeTiling,
    row_tile,
)
from blink_persistent.engines.cuda.kernels.cuts.hopper import HOPPER_CUTS
from blink_persistent.engines.cuda.kernels.cuts.likely_cuts import (
    MEMORY_BANDWIDTH,
    StepProduct,
    estimated_us,
    primed_candidates,
    step_products,
)
from blink_persistent.engines.cuda.kernels.cuts.primed_cut import PrimedCut
from blink_persistent.engines.cuda.kernels.fused import FusedKernels
from blink_persistent.gpu.driver import Gpu

FEW_STREAMED = 4
Note = Callable[..., None]


def floor_us(product: StepProduct) -> float:
    return 1e6 * 2 * product.shape[0] * product.shape[1] / MEMORY_BANDWIDTH


def likeliest(product: StepProduct, tile: int, tries: int) -> list[PrimedCut]:
    found = primed_candidates(product.shape, tile, gated=product.gated, in_parts=product.in_parts)
    return sorted(found, key=lambda cut: estimated_us(cut, product.shape, tile))[:tries]


def streamed(product: StepProduct, tile: int) -> Iterator[Cut]:
    known = HOPPER_CUTS.get((product.shape, tile))
    if isinstance(known, Cut):
        yield known
    else:
        yield from itertools.islice(candidates(product.name, product.shape), FEW_STREAMED)


class Contest:
    """The ways of each product of one model, for one number of rows."""

    def __init__(
        self, bench: Bench, gpu: Gpu, triton: TritonKernels, rows: int, tries: int, note: Note
    ) -> None:
        self.bench, self.gpu, self.triton, self.rows, self.note = bench, gpu, triton, rows, note
        tile = row_tile(rows)
        assert tile is not None
        self.tile = tile
        self.products = step_products(bench.shape)
        self.wide = {
            product: wide_offers(
                product.shape, tile, gated=product.gated, in_parts=product.in_parts
            )
            for product in self.products
        }
        self.primed = {product: likeliest(product, tile, tries) for product in self.products}
        every = {
            ((product.name, number), tile): cut
            for product, cuts in self.primed.items()
            for number, cut in enumerate(cuts)
        }
        primed = AheadProducts(gpu, every)  # compiled together
        one_by_one = OneByOne(gpu)

        def multiply(
            x: Any, weight: Any, out: Any, cut: Any, row_tile: int, **options: Any
        ) -> None:
            run = primed if isinstance(cut, PrimedCut) else one_by_one
            run(x, weight, out, cut, row_tile, **options)

        bench.make_ahead = lambda cuts: multiply
        self.norm = primed_norm_for(gpu, bench.shape.hidden_size)
        self.best: dict[str, dict[StepProduct, tuple[float, AnyCut | None]]] = {}

    def products_alone(self) -> None:
        for product in self.products:
            ways: Mapping[str, list[Any]] = {
                "library": [None],
                "streamed": list(streamed(product, self.tile)),
                "primed": self.primed[product],
                "wide": self.wide[product],
            }
            for way, cuts in ways.items():
                timed = [(self.bench.product_us(product.name, self.rows, cut), cut) for cut in cuts]
                for us, cut in timed:
                    self.note("product", rows=self.rows, name=product.name, way=way,
                              us=round(us, 2), share=round(floor_us(product) / us, 3),
                              cut=cut and asdict(cut))  # fmt: skip
                if timed:
                    best = min(timed, key=lambda pair: pair[0])
                    self.best.setdefault(way, {})[product] = best

    def chosen(self, way: str) -> dict[Any, AnyCut]:
        """Cuts of the step in which products go one way, or each the "best"."""
        ways = self.best if way == "best" else {way: self.best[way]}
        found = {}
        for product in self.products:
            offers = [way[product] for way in ways.values() if product in way]
            cut = min(offers, key=lambda pair: pair[0])[1] if offers else None
            if cut is not None:
                found[product.shape, self.tile] = cut
        return found

    def together(self) -> None:
        layers = self.bench.shape.layers
        floors = {p.name: floor_us(p) * (1 if p.name == "head" else layers) for p in self.products}
        self.note("floors", rows=self.rows, floors={k: round(v, 1) for k, v in floors.items()})
        norms = (None, self.norm)
        plain = [("library", None), ("streamed", None)]
        ahead = [way for way in ("primed", "wide") if way in self.best]
        for way, norm in plain + [(way, norm) for way in (*ahead, "best") for norm in norms]:
            self.bench.primed_norm = norm
            cuts = self.chosen(way)
            for chained in (True, False):
                kernels = self.bench.kernels(cuts, None, chained=chained)
                chain = microseconds(self.chain(kernels))
                step = self.bench.step_us(self.rows, kernels)
                share = (sum(floors.values()) - floors["head"]) / chain
                self.note("chain, step", rows=self.rows, way=way, primed_norm=norm is not None,
                          chained=chained, chain=round(chain, 1), share=round(share, 3),
                          step=round(step, 1))  # fmt: skip

    def with_attention(self) -> None:
        """The step with every cut of attention, Triton's and those in CUDA C++."""
        bench = self.bench
        offers: list[AnyAttention | DecodeTiling | None] = [None, *TILINGS]
        offers += attentions_for(bench.shape, self.tile)
        shortest: tuple[float, Any] = (math.inf, None)
        for offer in offers:
            tiling, bench.ahead_attention = None, None
            if isinstance(offer, DecodeTiling):
                tiling = offer
            elif offer is not None:
                sizes: dict[str, Any] = {"max_rows": MAX_ROWS, "processors": PROCESSORS}
                bench.ahead_attention = AheadAttention(
                    self.gpu, bench.shape, device="cuda", cuts={self.tile: offer}, **sizes
                )
            for norm in (None, self.norm):
                bench.primed_norm = norm
                kernels = bench.kernels(self.chosen("best"), tiling)
                us = bench.step_us(self.rows, kernels)
                self.note("attention", rows=self.rows, primed_norm=norm is not None,
                          us=round(us, 1), cut=offer and asdict(offer))  # fmt: skip
                shortest = min(shortest, (us, kernels), key=lambda found: found[0])
        bench.ahead_attention = bench.primed_norm = None
        with self.triton.all_shared():
            us = bench.step_us(self.rows, shortest[1])
        self.note("small kernels with all shared memory", rows=self.rows, us=round(us, 1))
        found = kernels_of(bench.step(self.rows, shortest[1]))
        self.note("kernels", rows=self.rows, us=round(shortest[0], 1), kernels=found)

    def chain(self, kernels: FusedKernels) -> Callable[[], None]:
        """All layers' products and norms, in the order of a step."""
        bench, t = self.bench, self.rows
        work, epsilon = bench.work, bench.shape.rms_norm_eps
        residual, normed = work.residual[:t], work.normed[:t]
        work.residual.zero_()
        work.normed.normal_()
        work.mixed.normal_()

        def run() -> None:
            for layer in bench.weights.layers:
                kernels.product(normed, layer.qkv, work.qkv, t)
                delta = kernels.product(work.mixed, layer.output, work.delta, t)
                kernels.add_norm(delta, layer.inner_norm, epsilon, residual, normed)
                if layer.router is not None:
                    kernels.vocabulary_product(normed, layer.router, work.experts.scores[:t])
                    continue
                kernels.gated_product(normed, layer.gate_up, work.gate_up, work.inner, t)
                delta = kernels.product(work.inner, layer.down, work.delta, t)
                kernels.add_norm(delta, layer.input_norm, epsilon, residual, normed)

        return run


def measure(
    model: str, gpu: Gpu, kernels: TritonKernels, rows: list[int], tries: int, note: Note
) -> list[str]:
    """Lines of the table."""
    bench, lines = Bench(model), []
    for count in rows:
        contest = Contest(bench, gpu, kernels, count, tries, note)
        contest.products_alone()
        contest.together()
        contest.with_attention()
        lines += [f"    {key}: {cut}," for key, cut in contest.chosen("best").items()]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", action="append", choices=list(ARCHITECTURES))
    parser.add_argument("--rows", type=int, action="append")
    parser.add_argument("--tries", type=int, default=6, help="primed cuts of each product")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []
    table: list[str] = []
    torch.cuda.init()
    with Gpu() as gpu:
        kernels = TritonKernels(gpu)
        try:
            for model in arguments.model or MODELS:

                def note(kind: str, model: str = model, **row: Any) -> None:
                    found.append({"model": model, "kind": kind, **row})
                    print(model, kind, *row.values(), flush=True)

                rows = arguments.rows or list(ROWS)
                table += measure(model, gpu, kernels, rows, arguments.tries, note)
                torch.cuda.empty_cache()  # the next one needs the memory
        finally:
            (arguments.output / "primed.json").write_text(json.dumps(found, indent=1) + "\n")
            print(*table, sep="\n")
            torch.cuda.synchronize()


if __name__ == "__main__":
    main()
