"""The kernels that read ahead on small operands, chained, against plain PyTorch on the CPU: for
tools that watch a whole process; run by the test beside it.

ahead_run.py [--without-layers]

No kernel of a library with shared memory is launched, since tools report races inside those.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from blink_persistent.engines.cuda.kernels.ahead.attention import AheadAttention
from blink_persistent.engines.cuda.kernels.ahead.layers import AllLayers
from blink_persistent.engines.cuda.kernels.ahead.one_token_experts import OneTokenExperts
from blink_persistent.engines.cuda.kernels.ahead.primed import PrimedProducts
from blink_persistent.engines.cuda.kernels.ahead.primed_norm import PrimedNorm
from blink_persistent.engines.cuda.kernels.cuts.choices import ROW_TILES
from blink_persistent.engines.cuda.kernels.cuts.direct_attention_cut import DirectCut
from blink_persistent.engines.cuda.kernels.cuts.even_attention_cut import EvenCut
from blink_persistent.engines.cuda.kernels.cuts.hopper import HOPPER_LAYERS
from blink_persistent.engines.cuda.kernels.cuts.likely_cuts import likely_cut
from blink_persistent.engines.cuda.kernels.cuts.one_token_cut import OneTokenCut
from blink_persistent.engines.cuda.kernels.cuts.primed_cut import PrimedCut
from blink_persistent.engines.cuda.kernels.protocol import Heads, Projected, Rotary
from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.engines.cuda.model import Decoder, rotary_tables
from blink_persistent.engines.cuda.step_tensors import KvCache, StepInputs, Workspace, empty_inputs
from blink_persistent.engines.cuda.weights import LayerWeights, Weights, random_weights
from blink_persistent.gpu.driver import Gpu
from blink_server.testing.memory_checkpoint import tiny_architecture

DEVICE = "cuda"
BFLOAT16 = 1e-2  # ||difference|| / ||expected||
SHAPE = tiny_architecture(
    hidden_size=512, heads=8, kv_heads=2, head_dim=128, attention_bias=True, qk_norm=True,
    context_length=256,
)  # fmt: skip
BLOCK_SIZE, MAX_BLOCKS, PARTS = 32, 8, 5
LENGTHS = (200, 0, 1, 33, 256)


def check(name: str, found: Any, expected: Any) -> None:
    error = float((found.cpu().float() - expected.float()).norm() / expected.float().norm())
    print(name, error)
    assert error < BFLOAT16, name


def check_products(gpu: Any, shape: tuple[int, int], *, gated: bool) -> None:
    weight = (torch.randn(shape) / shape[1] ** 0.5).bfloat16()
    on_device = weight.to(DEVICE)
    for tile, rows in zip(ROW_TILES, (1, 13, 29, 64), strict=True):
        cut = likely_cut(shape, tile, gated=gated, in_parts=not gated)
        assert cut is not None
        products = PrimedProducts(gpu, {(shape, tile): cut})
        x = torch.randn(rows, shape[1]).bfloat16()
        expected = x.float() @ weight.float().t()
        size, kind = shape[0], torch.float32
        if gated:
            gate, up = expected.chunk(2, dim=1)
            expected = torch.nn.functional.silu(gate) * up
            size, kind = shape[0] // 2, torch.bfloat16
        out = torch.full((cut.splits, rows, size), torch.nan, dtype=kind).to(DEVICE)
        for _ in range(2):
            products(x.to(DEVICE), on_device, out, cut, tile, chained=True)
        check(f"product of {rows} rows", out.cpu().float().sum(dim=0), expected)


def check_norm(gpu: Any) -> None:
    size, rows = 2052, 3
    norm = PrimedNorm(gpu, size)
    delta, gain = torch.randn(PARTS, rows, size), torch.rand(size).bfloat16()
    residual, normed = torch.randn(rows, size), torch.empty(rows, size).bfloat16()
    on_device = residual.to(DEVICE), normed.to(DEVICE)
    norm(delta.to(DEVICE), gain.to(DEVICE), 1e-5, *on_device, chained=True)
    ReferenceKernels().add_norm(delta, gain, 1e-5, residual, normed)
    check("residual", on_device[0], residual)
    check("normed", on_device[1], normed)


def projected(rows: int, device: str, *, rounded: bool = False) -> Projected:
    """`rounded`: as the library does it."""
    torch.manual_seed(3)
    size = SHAPE.head_dim
    width = (SHAPE.heads + 2 * SHAPE.kv_heads) * size
    tables = tables_of(rows)
    last = torch.tensor([max(LENGTHS[row % len(LENGTHS)] - 1, 0) for row in range(rows)])
    block = tables.gather(1, (last // BLOCK_SIZE)[:, None])[:, 0]
    active = torch.tensor([LENGTHS[row % len(LENGTHS)] > 0 for row in range(rows)])
    angle = 7 * torch.rand(SHAPE.context_length, size // 2)
    heads = Heads(
        heads=SHAPE.heads,
        kv_heads=SHAPE.kv_heads,
        head_dim=size,
        bias=torch.randn(width).bfloat16().to(device),
        q_norm=(torch.rand(size) + 0.5).bfloat16().to(device),
        k_norm=(torch.rand(size) + 0.5).bfloat16().to(device),
        epsilon=1e-6,
    )
    parts = torch.randn(PARTS, rows, width)
    return Projected(
        qkv=(parts[:1].bfloat16() if rounded else parts).to(device),
        heads=heads,
        rotary=Rotary(angle.cos().to(device), angle.sin().to(device)),
        positions=last.int().to(device),
        entries=torch.where(active, block * BLOCK_SIZE + last % BLOCK_SIZE, -1).int().to(device),
        queries=torch.zeros(rows, SHAPE.heads * size).bfloat16().to(device),
    )


def check_experts(gpu: Any) -> None:
    shape = tiny_architecture(
        family="qwen3_moe", hidden_size=512, intermediate_size=256, experts=21, experts_per_token=3
    )
    cut = OneTokenCut(PrimedCut(blocks=5, warps=4, stages=3, gated=True), sum_stages=2, scored=4)
    experts = OneTokenExperts(gpu, shape, cut, device=DEVICE)
    x, scores = torch.randn(1, 512).bfloat16(), torch.randn(1, 21)
    gate_up = (torch.randn(21, 512, 512) / 512**0.5).bfloat16()
    down = (torch.randn(21, 512, 256) / 256**0.5).bfloat16()
    found, plain = (
        Workspace.allocate(shape, 1, 1, device=device, dtype=torch.bfloat16).experts
        for device in (DEVICE, "cpu")
    )
    found.scores.copy_(scores)
    moved, *matrices = (tensor.to(DEVICE) for tensor in (x, gate_up, down))
    for _ in range(2):
        parts = experts.products(moved, matrices[0], matrices[1], found, chained=True)
    reference = ReferenceKernels()
    reference.choose_experts(scores, torch.zeros(1, dtype=torch.int32), plain)
    expected = reference.expert_products(x, gate_up, down, plain).float().sum(dim=0)
    check("experts of one token", parts.cpu().sum(dim=0), expected)


def tables_of(rows: int) -> Any:
    return torch.arange(rows * MAX_BLOCKS).flip(0).view(rows, MAX_BLOCKS)


def check_attention(gpu: Any) -> None:
    sizes: dict[str, Any] = {"max_rows": 8, "processors": 131, "device": DEVICE}
    for cut in (
        *(DirectCut(), DirectCut(warps=2, clustered=True)),
        *(EvenCut(warps=8, pairs=2, resident=1), EvenCut(warps=4, pairs=2, resident=2)),
    ):
        attention = AheadAttention(gpu, SHAPE, cuts={8: cut}, **sizes)
        for rows, rounded in ((1, False), (5, False), (5, isinstance(cut, EvenCut))):
            pages = torch.randn(2, rows * MAX_BLOCKS, SHAPE.kv_heads, BLOCK_SIZE, SHAPE.head_dim)
            keys, values = pages.bfloat16()
            lengths = torch.tensor([LENGTHS[row] for row in range(rows)], dtype=torch.int32)
            new, tables = projected(rows, "cpu", rounded=rounded), tables_of(rows).int()
            out = torch.full_like(new.queries, torch.nan)
            inputs = [tensor.to(DEVICE) for tensor in (keys, values, lengths, tables, out)]
            for _ in range(2):
                attention(projected(rows, DEVICE, rounded=rounded), *inputs, chained=True)
            ReferenceKernels().attend_new(new, keys, values, lengths, tables, out)
            check(f"attention of {rows} rows", inputs[-1], out)
            check("keys", inputs[0], keys)
            check("values", inputs[1], values)


def check_all_layers(gpu: Any) -> None:
    """Of the narrowest model that they are for."""
    shape = tiny_architecture(
        **{"hidden_size": 4096, "intermediate_size": 2048, "heads": 32, "kv_heads": 8},
        **{"head_dim": 128, "qk_norm": True, "vocabulary_size": 64, "context_length": 256},
    )
    rows, block_size = len(LENGTHS), 64
    blocks = shape.context_length // block_size
    plain = {"device": "cpu", "dtype": torch.float32}
    moved = {"device": DEVICE, "dtype": torch.bfloat16}
    weights = random_weights(shape, device=DEVICE, dtype=torch.bfloat16)
    found, expected = (
        Decoder(
            shape,
            weights if places is moved else plain_weights(weights),
            rotary_tables(shape, shape.context_length, device=places["device"]),
            KvCache.allocate(shape, rows * blocks, block_size, **places),
            Workspace.allocate(shape, rows, rows, **places),
            ReferenceKernels(),
        )
        for places in (moved, plain)
    )
    expected.cache.pages.normal_()
    found.cache.pages.copy_(expected.cache.pages)
    expected.cache.pages.copy_(found.cache.pages)
    expected.decode(inputs_of(rows, blocks, "cpu"), rows)
    parts = found.weights, found.rotary, found.cache, found.work
    layers = AllLayers(gpu, shape, *parts, HOPPER_LAYERS)
    inputs = inputs_of(rows, blocks, DEVICE)
    for _ in range(2):
        found.work.residual.copy_(weights.embedding[inputs.token_ids.long()])
        layers(inputs, rows)
    check("all layers", found.work.residual, expected.work.residual)
    check("keys and values of all layers", found.cache.pages, expected.cache.pages)


def plain_weights(weights: Weights) -> Weights:
    def plain(layer: LayerWeights) -> LayerWeights:
        parts = {name: getattr(layer, name) for name in LayerWeights.__slots__}
        return LayerWeights(**{k: v if v is None else v.cpu().float() for k, v in parts.items()})

    embedding, norm, head = (
        x.cpu().float() for x in (weights.embedding, weights.norm, weights.head)
    )
    return Weights(embedding, tuple(map(plain, weights.layers)), norm, head)


def inputs_of(rows: int, blocks: int, device: str) -> StepInputs:
    inputs = empty_inputs(rows, rows, blocks, device=device)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    inputs.token_ids.copy_(torch.arange(rows))
    inputs.lengths.copy_(lengths)
    inputs.start_positions.copy_((lengths - 1).clamp(min=0))
    inputs.block_tables.copy_(torch.arange(rows * blocks).view(rows, blocks))
    return inputs


def main() -> None:
    torch.manual_seed(1)
    with Gpu() as gpu:
        for gated in (False, True):
            check_products(gpu, (1040, 512), gated=gated)
        check_norm(gpu)
        check_attention(gpu)
        check_experts(gpu)
        if "--without-layers" not in sys.argv:
            check_all_layers(gpu)
        torch.cuda.synchronize()
    print("all results are right")


if __name__ == "__main__":
    main()
