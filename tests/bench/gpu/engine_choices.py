"""Which way of each product and of attention is the fastest in a decode step.

    python tests/bench/gpu/engine_choices.py OUTPUT_DIRECTORY [--model llama-3-8b]

Method: random weights at the model's full shape, `CONTEXT` entries of KV a row in blocks at random
places. A case is captured as a graph and replayed; the median of 3 runs of 8 replays between two
device events. "product": the product of every layer, one after the other, so that weights come
from memory, the engine's own chained as in a step; each result is compared with PyTorch's first.
"step": a whole decode step but for the sampler. Choices are made greedily: the best three cuts of
each product are tried in the step, streamed or, from 16 rows, wide, then the attention's tilings,
then attention and norm in CUDA C++, then the stages of products that read ahead; each keeps what
won before it. With --known the tables' products that read ahead are taken, of more rows where these
have none; the vocabulary's, attention, norm and stages are chosen. What is printed last are lines
of the tables in kernels/cuts/hopper.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import triton
from ahead_choices import OneByOne, attentions_for, wide_offers, with_other_stages

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.ahead.attention import AheadAttention
from blink_persistent.engines.cuda.kernels.ahead.primed_norm import PrimedNorm, primed_norm_for
from blink_persistent.engines.cuda.kernels.ahead.products import MakeAhead, no_ahead
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
from blink_persistent.engines.cuda.kernels.fused import FusedKernels, product_shapes
from blink_persistent.engines.cuda.model import Decoder, rotary_tables
from blink_persistent.engines.cuda.step_tensors import KvCache, StepInputs, Workspace, empty_inputs
from blink_persistent.engines.cuda.weights import random_weights
from blink_persistent.gpu.compile import DeviceCodeError
from blink_persistent.gpu.driver import CudaError, Gpu

CONTEXT, BLOCK_SIZE, MAX_BLOCKS, MAX_ROWS = 1024, 64, 32, 64
PROCESSORS, HOPPER = 131, (9, 0)
EVEN = 128  # programs, or a multiple: as many on each processor but for three
REPLAYS, RUNS = 8, 3
NAMES = ("qkv", "output", "gate_up", "down", "head")
WITH_EXPERTS = ("qkv", "output", "router", "head")  # for the experts see expert_choices.py
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


class Bench:
    """One model in memory, and the time of its steps with any choice."""

    def __init__(self, model: str, make_ahead: MakeAhead = no_ahead) -> None:
        self.shape = shape = ARCHITECTURES[model]
        self.make_ahead = make_ahead
        self.ahead_attention: AheadAttention | None = None
        self.primed_norm: PrimedNorm | None = None
        self.names = WITH_EXPERTS if shape.experts else NAMES
        places = {"device": "cuda", "dtype": torch.bfloat16}
        self.weights = random_weights(shape, **places)
        count = 1 + MAX_ROWS * (CONTEXT // BLOCK_SIZE + 1)
        self.cache = KvCache.allocate(shape, count, BLOCK_SIZE, **places)
        self.cache.pages.normal_()
        self.work = Workspace.allocate(shape, MAX_ROWS, MAX_ROWS, **places)
        self.rotary = rotary_tables(shape, MAX_BLOCKS * BLOCK_SIZE, device="cuda")
        self.inputs: StepInputs = empty_inputs(MAX_ROWS, MAX_ROWS, MAX_BLOCKS, device="cuda")
        self.inputs.token_ids.random_(shape.vocabulary_size)
        order = (torch.randperm(count - 1, device="cuda") + 1).view(MAX_ROWS, -1)
        self.inputs.block_tables[:, : order.shape[1]] = order.int()
        self.inputs.start_positions.fill_(CONTEXT)
        self.inputs.lengths.fill_(CONTEXT + 1)

    def kernels(
        self, cuts: Any, tiling: DecodeTiling | None, *, chained: bool = True
    ) -> FusedKernels:
        return FusedKernels(
            self.shape,
            max_rows=MAX_ROWS,
            capacity=MAX_BLOCKS * BLOCK_SIZE,
            processors=PROCESSORS,
            chained=chained,
            device="cuda",
            decode=tiling,
            cuts=cuts,
            make_ahead=self.make_ahead,
            ahead_attention=self.ahead_attention,
            primed_norm=self.primed_norm,
        )

    def step_us(self, rows: int, kernels: FusedKernels) -> float:
        return microseconds(self.step(rows, kernels))

    def step(self, rows: int, kernels: FusedKernels) -> Callable[[], object]:
        decoder = Decoder(self.shape, self.weights, self.rotary, self.cache, self.work, kernels)
        return lambda: decoder.decode(self.inputs, rows)

    def weights_of(self, name: str) -> list[torch.Tensor]:
        if name == "head":
            return [self.weights.head]
        return [getattr(layer, name) for layer in self.weights.layers]

    def product_us(self, name: str, rows: int, cut: AnyCut | None) -> float:
        """Of one product; infinite where there can be no such kernel."""
        weights, tile = self.weights_of(name), row_tile(rows)
        shape = (*weights[0].shape,)
        cuts: dict[Any, Any] = {}
        if cut is not None:  # the others', so that it is chained
            cuts = dict.fromkeys((other, tile) for other in product_shapes(self.shape))
            cuts[shape, tile] = cut
        kernels = self.kernels(cuts, DecodeTiling())
        x = torch.randn(rows, shape[1], device="cuda").bfloat16()
        out = self.out(name, rows, shape)

        def multiply(weight: torch.Tensor) -> torch.Tensor:
            """The product's parts."""
            if name == "gate_up":
                kernels.gated_product(x, weight, self.work.gate_up, out, rows)
            elif name in ("head", "router"):
                kernels.vocabulary_product(x, weight, out)
            else:
                return kernels.product(x, weight, out, rows)
            return out[None]

        try:
            found = multiply(weights[0]).float().sum(dim=0)
        except triton.runtime.errors.OutOfResources:
            return float("inf")
        except (DeviceCodeError, CudaError) as error:
            print(name, rows, cut, error, flush=True)
            return float("inf")
        expected = x.float() @ weights[0].float().t()
        if name == "gate_up":
            gate, up = expected.chunk(2, dim=1)
            expected = torch.nn.functional.silu(gate) * up
        wrong = float((found - expected).norm() / expected.norm())
        assert wrong < 1e-2, (name, rows, cut, wrong)

        return microseconds(lambda: [multiply(weight) for weight in weights]) / len(weights)

    def out(self, name: str, rows: int, shape: Shape) -> torch.Tensor:
        if name == "head":
            return self.work.logits[:rows]
        if name == "router":
            return self.work.experts.scores[:rows]
        size = shape[0] // 2 if name == "gate_up" else shape[0]
        return torch.empty(rows, size, device="cuda", dtype=torch.bfloat16)


def microseconds(work: Callable[[], object]) -> float:
    """Of one replay of what `work` enqueues."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # what `work` reads is made there
    with torch.no_grad(), torch.cuda.stream(stream):
        work()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        work()
        graph.capture_end()
        found = []
        for _ in range(RUNS + 1):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(REPLAYS):
                graph.replay()
            end.record()
            end.synchronize()
            found.append(1e3 * start.elapsed_time(end) / REPLAYS)
    return statistics.median(found[1:])


def kernels_of(work: Callable[[], object]) -> dict[str, list[float]]:
    """Calls, and microseconds of one, of every kernel that `work` launches eagerly."""
    with torch.no_grad():
        work()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            work()
            torch.cuda.synchronize()
    events = [event for event in profile.key_averages() if event.self_device_time_total]
    return {e.key[:60]: [e.count, round(e.self_device_time_total / e.count, 2)] for e in events}


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
        self.bench, self.gpu, self.rows, self.note = bench, gpu, rows, note
        self.product = {product.name: product for product in step_products(bench.shape)}
        self.cuts: dict[Any, AnyCut] = {}
        self.tiling = DecodeTiling()
        self.attention: AnyAttention | None = None
        self.norm = False
        self.made: dict[AnyAttention, AheadAttention] = {}
        self.primed_norm = primed_norm_for(gpu, bench.shape.hidden_size)
        self.least = float("inf")

    def shape(self, name: str) -> Shape:
        return (*self.bench.weights_of(name)[0].shape,)

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
            tile, sizes = row_tile(self.rows), {"max_rows": MAX_ROWS, "processors": PROCESSORS}
            assert tile is not None
            self.made[attention] = AheadAttention(
                self.gpu, self.bench.shape, device="cuda", cuts={tile: attention}, **sizes
            )
        return self.made[attention]

    def attempt(self, name: str, cut: AnyCut | None) -> None:
        key = (self.shape(name), row_tile(self.rows))
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
        offers = attentions_for(self.bench.shape, row_tile(self.rows))
        found = [(None, True), *((offer, norm) for offer in offers for norm in (False, True))]
        for attention, norm in found:
            self.attempt_attention(attention, norm=norm)

    def vocabulary(self) -> None:
        head, tile = self.product["head"], row_tile(self.rows)
        assert tile is not None
        for cut in wide_offers(head.shape, tile, gated=False, in_parts=False):
            self.attempt("head", cut)

    def stages(self) -> None:
        """Of products that read ahead, now that it is known what stands beside them."""
        tile = row_tile(self.rows)
        assert tile is not None
        for name in self.bench.names * 2:
            cut = self.cuts.get((self.shape(name), tile))
            if isinstance(cut, AheadCut):
                for offer in with_other_stages(cut, tile):
                    self.attempt(name, offer)

    def take_known(self) -> bool:
        """Where a number of rows has no products that read ahead, those of more rows."""
        shape, tile = self.bench.shape, row_tile(self.rows)
        found = measured_choices(shape, HOPPER)
        for other in ROW_TILES[ROW_TILES.index(tile) :]:
            cuts = {
                (self.shape(name), tile): cut
                for name in self.bench.names
                if (cut := found.cuts.get((self.shape(name), other))) is not None
            }
            if any(isinstance(cut, AheadCut) for cut in cuts.values()):
                self.cuts = cuts
                self.least = self.us()
                self.note("known step", rows=self.rows, us=round(self.least, 1), tile=other)
                return True
        return False

    def offers(self, name: str) -> Iterator[AnyCut | None]:
        product, tile = self.product[name], row_tile(self.rows)
        assert tile is not None
        yield None
        yield from candidates(name, product.shape)
        yield from wide_offers(product.shape, tile, gated=product.gated, in_parts=product.in_parts)

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
        tile = row_tile(self.rows)
        self.cuts = {
            (self.shape(name), tile): cut
            for name in self.bench.names
            for cut in [best[name][0][1]]
            if cut
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
        lines.append(f"    {(heads, row_tile(count))}: {search.attention or search.tiling},")
    return lines


if __name__ == "__main__":
    main()
