"""Compiles the kernels that other benchmarks need, in as many processes as there are cores.

    python tests/bench/gpu/warm_kernels.py --model llama-3-8b [--rows 128] [--mixed 608] [--choices]

One process compiles them one after the other, which takes a minute for a whole grid. Steps of every
key of the model's fine grid run on tensors without memory, for a Hopper GPU that need not be there;
each launch compiles and launches nothing. What was compiled lies in Triton's cache afterwards, and
what of it is CUDA C++ in the engine's own. With `--choices` the products and the attention that
engine_choices.py tries too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import engine_choices as choices
import torch
import triton
from ahead_choices import OneByOne, attentions_for, wide_offers, with_other_stages
from cuda.bindings import driver
from step_bench import MAX_ROWS, NAMES, WITH_EXPERTS
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction, compute_cache_key

from blink_persistent.engines import TOKEN_GRANULARITY
from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels import fused
from blink_persistent.engines.cuda.kernels.ahead.attention import load_attentions
from blink_persistent.engines.cuda.kernels.ahead.layers import load_layers
from blink_persistent.engines.cuda.kernels.ahead.one_token_experts import OneTokenExperts
from blink_persistent.engines.cuda.kernels.ahead.primed_norm import primed_norm_for
from blink_persistent.engines.cuda.kernels.ahead.products import ahead_on
from blink_persistent.engines.cuda.kernels.cuts.choices import (
    AheadCut,
    Cut,
    DecodeTiling,
    StepChoices,
    row_tile,
)
from blink_persistent.engines.cuda.kernels.cuts.hopper import (
    measured,
    measured_choices,
    prefills_by_pages,
)
from blink_persistent.engines.cuda.kernels.cuts.layers_cut import LayerFeatures
from blink_persistent.engines.cuda.kernels.cuts.likely_choices import likely_choices
from blink_persistent.engines.cuda.kernels.cuts.likely_cuts import step_products
from blink_persistent.engines.cuda.kernels.fused import FusedKernels
from blink_persistent.engines.cuda.memory import most_sampled, most_tokens
from blink_persistent.engines.cuda.model import Decoder, rotary_tables
from blink_persistent.engines.cuda.step_tensors import KvCache, Workspace, empty_inputs
from blink_persistent.engines.cuda.steps import enqueue_step
from blink_persistent.engines.cuda.weights import fill_weights
from blink_persistent.gpu.driver import Gpu
from blink_persistent.graph_grid import DECODE, PREFILL, GraphGrid, default_grid, fine_grid
from blink_server.importers.checkpoint import Architecture

HOPPER, WARP = (9, 0), 32
CONTEXT, BLOCK_SIZE, PROCESSORS, LAYERS = 2048, 64, 131, 2
NOWHERE: dict[str, Any] = {"device": "meta", "dtype": torch.bfloat16}


class NoSampler:
    """Fulfils `DeviceSampling`: it is no kernel of Triton's."""

    def record(self, *_: object, **__: object) -> None: ...


class NoDevice:
    """What Triton asks of its driver to compile."""

    def get_current_target(self) -> GPUTarget:
        major, minor = HOPPER
        return GPUTarget("cuda", 10 * major + minor, WARP)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Share:
    """Stands in for `JITFunction.run`: every `of`-th kernel is compiled here, none is launched."""

    def __init__(self, number: int, of: int) -> None:
        self._number, self._of = number, of
        self._run = JITFunction.run
        self.seen: set[str] = set()
        self.compiled = 0

    def install(self) -> None:
        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
            self.compile(kernel, args, grid, options)

        JITFunction.run = run

    def compile(self, kernel: Any, args: Any, grid: Any, options: dict[str, Any]) -> None:
        """Unless it has been seen, or is another's."""
        _, keys, _, _, binder = kernel.device_caches[0]
        _, specialization, given = binder(*args, **options)
        what = f"{kernel.__name__} {compute_cache_key(keys, specialization, given)}"
        if what in self.seen:
            return
        self.seen.add(what)
        if zlib.crc32(what.encode()) % self._of != self._number:
            return
        try:
            self._run(kernel, *args, grid=grid, warmup=True, **options)
        except Exception as error:  # where it is needed, it is reported
            print(f"{what}: {error}", flush=True)
        else:
            self.compiled += 1


class CodeShare(Gpu):
    """Stands in for a GPU: every `of`-th program is compiled here, none is loaded."""

    def __init__(self, number: int, of: int) -> None:
        self.driver, self.arch, self.exclusive = driver, "sm_{}{}".format(*HOPPER), nullcontext
        self._number, self._of = number, of
        self.seen: set[str] = set()
        self.compiled = 0

    def load(self, source: str, structs: Any, *, prologue: str = "", **options: Any) -> Any:
        """Unless it has been seen, or is another's."""
        what = f"{source} {prologue}"
        if what not in self.seen:
            self.seen.add(what)
            if zlib.crc32(what.encode()) % self._of == self._number:
                try:
                    super().load(source, structs, prologue=prologue, **options)
                except Exception as error:  # where it is needed, it is reported
                    print(f"{what}: {error}", flush=True)
                else:
                    self.compiled += 1
        return SimpleNamespace(function=lambda name: name)

    def call(self, function: str, *arguments: object) -> Any: ...

    def own(self, function: str, *arguments: object) -> None: ...


def choices_of(shape: Architecture) -> StepChoices:
    """What the engine's steps have by default."""
    return likely_choices(shape, measured_choices(shape, HOPPER), HOPPER, PROCESSORS)


def kernels_of(shape: Architecture, rows: int, **options: Any) -> FusedKernels:
    return FusedKernels(
        shape,
        max_rows=rows,
        capacity=CONTEXT,
        processors=PROCESSORS,
        chained=True,
        device="meta",
        **options,
    )


def not_launched(*_: object, **__: object) -> None:
    """A product that reads ahead: it is no kernel of Triton's."""


class OneToken(OneTokenExperts):
    """Their products are no kernels of Triton's, either."""

    def products(self, *_: object, **__: object) -> torch.Tensor:
        return self._parts


def run_grid(shape: Architecture, grid: GraphGrid, gpu: Gpu) -> None:
    """Every key's step. `gpu` gets what is CUDA C++ where kernels of Triton's belong to it."""
    sizes, found = (most_tokens(grid), most_sampled(grid)), choices_of(shape)
    experts = found.one_token_experts
    decoder = Decoder(
        architecture=shape,
        weights=fill_weights(shape, lambda name, part: None, **NOWHERE),
        rotary=rotary_tables(shape, CONTEXT, device="meta"),
        cache=KvCache.allocate(shape, 2, BLOCK_SIZE, **NOWHERE),
        work=Workspace.allocate(shape, *sizes, **NOWHERE),
        kernels=kernels_of(
            shape,
            grid.max_rows,
            cuts=found.cuts,
            make_ahead=lambda cuts: not_launched,
            one_token_experts=experts and OneToken(gpu, shape, experts, device="meta"),
        ),
    )
    blocks = CONTEXT // BLOCK_SIZE
    inputs = {
        DECODE: empty_inputs(grid.max_rows, grid.max_rows, blocks, device="meta"),
        PREFILL: empty_inputs(grid.max_sequences, grid.max_prefill_tokens, blocks, device="meta"),
    }
    for key in grid.keys:
        enqueue_step(decoder, inputs, key, NoSampler(), None)


def compile_code(shape: Architecture, gpu: Gpu) -> None:
    """What of a step's kernels is CUDA C++."""
    found = choices_of(shape)
    kernels_of(shape, MAX_ROWS, cuts=found.cuts, make_ahead=ahead_on(gpu))
    load_attentions(gpu, set(found.attentions.values()), shape)
    if found.layers:
        load_layers(gpu, found.layers, LayerFeatures.of(shape))
    primed_norm_for(gpu, shape.hidden_size, found.norms)


def compile_code_choices(shape: Architecture, gpu: Gpu) -> None:
    """What of engine_choices.py's is CUDA C++."""
    ahead = OneByOne(gpu)
    cuts = measured_choices(shape, HOPPER).cuts
    for tile in sorted({tile for rows in choices.ROWS if (tile := row_tile(rows))}):
        for product in step_products(shape):
            parts = {"gated": product.gated, "in_parts": product.in_parts}
            known = cuts.get((product.shape, tile))
            stages = with_other_stages(known, tile) if isinstance(known, AheadCut) else []
            for cut in (*wide_offers(product.shape, tile, **parts), *stages):
                ahead.load(cut, tile)
        for attention in attentions_for(shape, tile):
            load_attentions(gpu, {attention}, shape)
    primed_norm_for(gpu, shape.hidden_size)


def run_choices(shape: Architecture) -> None:
    """What engine_choices.py tries of Triton's: products alone, and attention's tilings."""
    for rows in choices.ROWS:
        tile = row_tile(rows)
        products = fused.product_shapes(shape)
        for name, weight in weights_of(shape):
            for cut in choices.candidates(name, weight):
                cuts: dict[Any, Cut | None] = dict.fromkeys((other, tile) for other in products)
                cuts[weight, tile] = cut
                multiply(kernels_of(shape, MAX_ROWS, cuts=cuts), name, weight, rows)
        for tiling in (DecodeTiling(), *choices.TILINGS):
            attend(shape, kernels_of(shape, MAX_ROWS, decode=tiling), rows)


def weights_of(shape: Architecture) -> Iterator[tuple[str, tuple[int, int]]]:
    """The products that have a choice: name, and the weight's shape."""
    qkv, output, other = fused.product_shapes(shape)
    hidden = shape.hidden_size
    found = {
        **{"qkv": qkv, "output": output, "down": other, "router": other},
        **{"gate_up": (2 * shape.intermediate_size, hidden)},
        **{"head": (shape.vocabulary_size, hidden)},
    }
    names = WITH_EXPERTS if shape.experts else NAMES
    return ((name, found[name]) for name in names)


def multiply(kernels: FusedKernels, name: str, weight: tuple[int, int], rows: int) -> None:
    size, depth = weight
    x, matrix = torch.empty(rows, depth, **NOWHERE), torch.empty(size, depth, **NOWHERE)
    if name == "gate_up":
        room, out = torch.empty(rows, size, **NOWHERE), torch.empty(rows, size // 2, **NOWHERE)
        kernels.gated_product(x, matrix, room, out, rows)
    elif name in ("head", "router"):
        kernels.vocabulary_product(x, matrix, torch.empty(rows, size, device="meta"))
    else:
        kernels.product(x, matrix, torch.empty(rows, size, **NOWHERE), rows)


def attend(shape: Architecture, kernels: FusedKernels, rows: int) -> None:
    inputs = empty_inputs(rows, rows, CONTEXT // BLOCK_SIZE, device="meta")
    queries = torch.empty(rows, shape.heads * shape.head_dim, **NOWHERE)
    keys, values = KvCache.allocate(shape, 2, BLOCK_SIZE, **NOWHERE).layer(0)
    lengths, tables = inputs.lengths, inputs.block_tables
    kernels.decode_attention(queries, keys, values, lengths, tables, torch.empty_like(queries))


def work(number: int, of: int, arguments: argparse.Namespace) -> tuple[int, int]:
    """One process's share: kernels compiled, of how many."""
    torch.set_num_threads(1)
    triton.runtime.driver.set_active(NoDevice())
    share, code = Share(number, of), CodeShare(number, of)
    share.install()
    fused.measured = lambda capability: measured(HOPPER)
    fused.prefills_by_pages = lambda shape, capability: prefills_by_pages(shape, HOPPER)
    with torch.no_grad():
        for model in arguments.model:
            shape = replace(ARCHITECTURES[model], layers=LAYERS)
            for grid in grids(arguments):
                run_grid(shape, grid, code)
            compile_code(shape, code)
            if arguments.choices:
                run_choices(shape)
                compile_code_choices(shape, code)
    return share.compiled + code.compiled, len(share.seen) + len(code.seen)


def grids(arguments: argparse.Namespace) -> Iterator[GraphGrid]:
    """What an import makes, with chunks of up to `--mixed` tokens, and what a test's kit makes."""
    options = {"max_sequences": 8, "granularity": TOKEN_GRANULARITY}
    yield fine_grid(arguments.rows, CONTEXT, **options, max_mixed_tokens=arguments.mixed)
    for sequences in (8, 16):
        yield default_grid(64, CONTEXT, max_sequences=sequences)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=ARCHITECTURES, required=True)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument(
        "--mixed", type=int, default=608, help="prompt tokens of mixed keys, 0: none"
    )
    parser.add_argument("--choices", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    return parser.parse_args(words)


def compile_all(arguments: argparse.Namespace, run: Callable[..., tuple[int, int]] = work) -> None:
    began, of = time.monotonic(), arguments.processes
    # Forked, which spares each the imports.
    with multiprocessing.get_context("fork").Pool(of, maxtasksperchild=1) as pool:
        work_of = [(number, of, arguments) for number in range(of)]
        shares = pool.starmap(run, work_of, chunksize=1)
    compiled, seen = sum(share[0] for share in shares), shares[0][1]
    print(f"{compiled} of {seen} kernels, {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    compile_all(parse())
