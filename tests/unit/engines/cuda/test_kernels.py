"""Each Triton kernel gives what plain PyTorch beside it gives, and compiles for the GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from blink_server.testing.memory_checkpoint import tiny_architecture

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from blink_persistent.engines.cuda.kernels.cuts.choices import (
    ROW_TILES,
    Cut,
    DecodeTiling,
)
from blink_persistent.engines.cuda.kernels.fused import FusedKernels
from blink_persistent.engines.cuda.kernels.page_attention import PageAttention
from blink_persistent.engines.cuda.kernels.products import Products
from blink_persistent.engines.cuda.kernels.protocol import Heads, Projected, Rotary

HERE = Path(__file__).resolve().parent
BLOCK_SIZE, MAX_BLOCKS, BLOCKS = 16, 32, 100
ARCHITECTURE = tiny_architecture(heads=6, kv_heads=2, head_dim=24)

Pair = tuple[Any, Any]
Kinds = dict[str, Callable[[Any], Any]]


@pytest.fixture
def pair(kernel_kinds: Kinds) -> Pair:
    """Reference and fused kernels."""
    if "fused" not in kernel_kinds:
        pytest.skip("Triton's interpreter is not used here")
    return kernel_kinds["reference"](ARCHITECTURE), kernel_kinds["fused"](ARCHITECTURE)


def both(pair: Pair, operation: str, make: Callable[[], tuple[Any, ...]], written: int) -> None:
    """Run both on equal arguments; the last `written` of them must come out equal."""
    results = []
    for kernels in pair:
        torch.manual_seed(7)
        arguments = make()
        getattr(kernels, operation)(*arguments)
        results.append(arguments[-written:])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


def int32(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.int32)


def tables(count: int) -> Any:
    return torch.randperm(BLOCKS - 1)[: count * MAX_BLOCKS].view(count, -1).int() + 1


def pages() -> Any:
    return torch.randn(BLOCKS, ARCHITECTURE.kv_heads, BLOCK_SIZE, ARCHITECTURE.head_dim)


def query_rows(count: int) -> Any:
    return torch.randn(count, ARCHITECTURE.heads * ARCHITECTURE.head_dim)


def test_decode_attention_in_several_splits(pair: Pair) -> None:
    capacity = BLOCK_SIZE * MAX_BLOCKS
    tiling = DecodeTiling(programs=3)
    assert tiling.splits(3, ARCHITECTURE.kv_heads, capacity, 3) == 1
    assert tiling.splits(1, ARCHITECTURE.kv_heads, capacity, 3) == 4

    def make(length: int) -> tuple[Any, ...]:
        poisoned = torch.full_like(query_rows(1), torch.nan)
        return query_rows(1), pages(), pages(), int32(length), tables(1), poisoned

    for length in (0, 1, 16, 17, 130, 512):
        both(pair, "decode_attention", lambda length=length: make(length), 1)


def test_decode_attention_of_rows_of_all_lengths(pair: Pair) -> None:
    def make() -> tuple[Any, ...]:
        poisoned = torch.full_like(query_rows(3), torch.nan)
        return query_rows(3), pages(), pages(), int32(400, 0, 33), tables(3), poisoned

    both(pair, "decode_attention", make, 1)


def test_prefill_attention_of_packed_prompts(pair: Pair) -> None:
    def make() -> tuple[Any, ...]:
        starts, ends = int32(0, 37, 0, 5), int32(0, 30, 47, 47, 48)
        out = torch.full_like(query_rows(64), -3.0)
        return query_rows(64), pages(), pages(), starts, ends, tables(3)[[0, 1, 2, 2]], out

    both(pair, "prefill_attention", make, 1)


@pytest.mark.parametrize("processors", [3, 100])
def test_prefill_attention_of_prompts_of_all_lengths(kernel_kinds: Kinds, processors: int) -> None:
    """In tiles of 128 queries, or of 64 where those would not fill the processors; one token, a
    tile's worth and one more, a chunk that starts within a block, and nobody's tokens behind."""
    if "fused" not in kernel_kinds:
        pytest.skip("Triton's interpreter is not used here")
    fused = FusedKernels(
        ARCHITECTURE, max_rows=8, capacity=512, processors=processors, chained=False, device="cpu"
    )

    def make() -> tuple[Any, ...]:
        starts, ends = int32(0, 0, 99, 0), int32(0, 1, 65, 194, 194)
        out = torch.full_like(query_rows(208), -3.0)
        return query_rows(208), pages(), pages(), starts, ends, tables(3)[[0, 1, 2, 2]], out

    both((kernel_kinds["reference"](ARCHITECTURE), fused), "prefill_attention", make, 1)


def test_prefill_attention_of_one_prompt_needs_every_tile(pair: Pair) -> None:
    def make() -> tuple[Any, ...]:
        poisoned = torch.full_like(query_rows(48), torch.nan)
        ends = int32(0, 48)
        return query_rows(48), pages(), pages(), int32(0), ends, tables(1), poisoned

    both(pair, "prefill_attention", make, 1)


def poisoned_pages(block_tables: Any, lengths: Sequence[int], bad: slice, part: int) -> list[Any]:
    """Keys and values that are NaN beyond the rows' entries, and some of row 0 in one of them."""
    found = []
    for each in range(2):
        kept, poisoned = pages(), torch.full_like(pages(), torch.nan)
        for row, length in enumerate(lengths):
            for at in range(length):
                place = int(block_tables[row, at // BLOCK_SIZE]), slice(None), at % BLOCK_SIZE
                clean = each != part or row > 0 or at not in range(length)[bad]
                poisoned[place] = kept[place] if clean else torch.nan
        found.append(poisoned)
    return found


BAD = pytest.mark.parametrize("bad", [slice(0, 1), slice(-1, None), slice(None)], ids=str)
INTERPRETED_NAN = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")


@INTERPRETED_NAN
@pytest.mark.parametrize("part", [0, 1], ids=["keys", "values"])
@BAD
@pytest.mark.parametrize("others", [(0,), (33, 0)], ids=["several splits", "one split"])
def test_entries_that_are_no_numbers_are_their_own_rows_alone(
    pair: Pair, part: int, bad: slice, others: tuple[int, ...]
) -> None:
    lengths = (100, *others)
    splits = DecodeTiling(programs=3).splits(len(lengths), 2, BLOCK_SIZE * MAX_BLOCKS, 3)
    assert splits == (2 if len(others) == 1 else 1)
    queries, block_tables = query_rows(len(lengths)), tables(len(lengths))
    keys, values = poisoned_pages(block_tables, lengths, bad, part)
    plain, found = (torch.full_like(queries, -3.0) for _ in pair)
    for kernels, out in zip(pair, (plain, found), strict=True):
        kernels.decode_attention(queries, keys, values, int32(*lengths), block_tables, out)
    assert found[0].isnan().all(), "the answer would look like one"
    assert found[1:].isfinite().all()
    torch.testing.assert_close(found, plain, rtol=2e-5, atol=2e-5, equal_nan=True)


@INTERPRETED_NAN
@pytest.mark.parametrize("part", [0, 1], ids=["keys", "values"])
@BAD
def test_entries_that_are_no_numbers_are_their_own_prompts_alone(
    pair: Pair, part: int, bad: slice
) -> None:
    queries, block_tables = query_rows(64), tables(3)
    keys, values = poisoned_pages(block_tables, (67, 17, 6), bad, part)
    out = torch.full_like(queries, -3.0)
    starts, ends = int32(37, 0, 5), int32(0, 30, 47, 48)
    pair[1].prefill_attention(queries, keys, values, starts, ends, block_tables, out)
    assert out[29].isnan().all(), "the answer would look like one"
    assert out[30:48].isfinite().all()
    assert (out[48:] == -3.0).all()


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("parts", [1, 3])
def test_rotation_with_norms_of_heads_and_append(pair: Pair, parts: int, others: int) -> None:
    """Of a projection in parts, with a bias and without, of all of a step's tokens or some."""
    size = ARCHITECTURE.head_dim
    width = (ARCHITECTURE.heads + 2 * ARCHITECTURE.kv_heads) * size

    def make() -> Projected:
        norms = {"q_norm": torch.rand(size), "k_norm": torch.rand(size)}
        heads = Heads(
            ARCHITECTURE.heads,
            ARCHITECTURE.kv_heads,
            size,
            bias=torch.randn(width) if parts > 1 else None,
            **norms,
            epsilon=ARCHITECTURE.rms_norm_eps,
        )
        rotary = Rotary(torch.randn(40, size // 2), torch.randn(40, size // 2))
        ahead, tokens = [7] * others, 3 + others
        places = int32(*ahead, 39, 0, 12), int32(*ahead, 5, -1, BLOCKS * BLOCK_SIZE - 1)
        queries = torch.full_like(query_rows(tokens), torch.nan)
        new = Projected(torch.randn(parts, tokens, width), heads, rotary, *places, queries)
        return new.only(slice(others, None))

    found = []
    for kernels in pair:
        torch.manual_seed(7)
        new, keys, values = make(), pages(), pages()
        kernels.rotate_append(new, keys, values)
        found.append((new.queries, keys, values))
    for expected, other in zip(*found, strict=True):
        torch.testing.assert_close(other, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("size", [1, 96, 130])
def test_rows_of_any_size(pair: Pair, size: int) -> None:
    def embed() -> tuple[Any, ...]:
        out = torch.full((3, size), torch.nan)
        ids, table, gain = int32(4, 0, 4), torch.randn(5, size), torch.rand(size)
        return ids, table, gain, 1e-5, out.clone(), out

    def add() -> tuple[Any, ...]:
        out = torch.full((3, size), torch.nan)
        return torch.randn(2, 3, size), torch.rand(size), 1e-5, torch.randn(3, size), out

    def gate() -> tuple[Any, ...]:
        return 4 * torch.randn(3, 2 * size), torch.full((3, size), torch.nan)

    both(pair, "embed_norm", embed, 2)
    both(pair, "add_norm", add, 2)
    both(pair, "swiglu", gate, 1)


SIZE, DEPTH = 48, 96


@pytest.fixture
def streamed() -> Callable[..., Any]:
    """Products that are cut in a given way, and weights to multiply with."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's interpreter is not used here")

    def make(cut: Cut, rows: int, *, halves: int = 1) -> tuple[Products, Any, Any]:
        torch.manual_seed(rows)
        shape = halves * SIZE, DEPTH
        cuts = {(shape, tile): cut for tile in ROW_TILES}
        products = Products([shape], cuts, chained=False, device="cpu")
        return products, torch.randn(rows, DEPTH), torch.randn(shape) / DEPTH**0.5

    return make


@pytest.mark.parametrize("rows", [1, 8, 17, 40])
@pytest.mark.parametrize(("splits", "features"), [(1, 16), (3, 16), (1, 12)])
def test_parts_of_a_streamed_product_add_up(
    streamed: Callable[..., Any], rows: int, splits: int, features: int
) -> None:
    products, x, weight = streamed(Cut(features=features, step=32, splits=splits), rows)
    library = torch.full((rows, SIZE), torch.nan)
    parts = products.product(x, weight, library, rows)
    assert parts.shape == (splits, rows, SIZE)
    torch.testing.assert_close(parts.sum(dim=0), x @ weight.t())
    share = DEPTH // splits
    torch.testing.assert_close(parts[-1], x[:, -share:] @ weight[:, -share:].t())
    assert library.isnan().all()


def test_a_streamed_gate_and_a_streamed_head(streamed: Callable[..., Any]) -> None:
    products, x, weight = streamed(Cut(features=12, step=16), 5, halves=2)
    out, room = torch.full((5, SIZE), torch.nan), torch.full((5, 2 * SIZE), torch.nan)
    products.gated_product(x, weight, room, out, 5)
    gate, up = (x @ weight.t()).chunk(2, dim=1)
    torch.testing.assert_close(out, torch.nn.functional.silu(gate) * up)
    assert room.isnan().all()
    products.vocabulary_product(x, weight, room)
    torch.testing.assert_close(room, x @ weight.t())


def test_more_rows_than_are_streamed_are_the_librarys(streamed: Callable[..., Any]) -> None:
    products, x, weight = streamed(Cut(features=16, step=16), 65)
    out = torch.full((65, SIZE), torch.nan)
    parts = products.product(x, weight, out, 65)
    assert parts.data_ptr() == out.data_ptr()
    torch.testing.assert_close(out, x @ weight.t())


def test_steps_are_chained_where_all_their_products_are_streamed() -> None:
    one, other = (64, 32), (32, 64)
    cut = Cut(features=16, step=16)
    cuts = {(one, 8): cut, (other, 8): cut, (one, 16): cut}
    chained = Products([one, other], cuts, chained=True, device="cpu")
    for rows, expected in ((1, True), (8, True), (9, False), (65, False)):
        assert chained.chain(rows) == {"CHAINED": expected, "launch_pdl": expected}
    assert not Products([one, other], cuts, chained=False, device="cpu").chain(1)["launch_pdl"]


def test_tokens_are_located(pair: Pair) -> None:
    def written(tokens: int) -> tuple[Any, Any]:
        return torch.full((tokens,), -7).int(), torch.full((tokens,), -7).int()

    def decode() -> tuple[Any, ...]:
        return int32(0, 9, 200), int32(1, 0, 201), tables(3), BLOCK_SIZE, *written(3)

    def prefill() -> tuple[Any, ...]:
        last = torch.full((3,), -7).int()
        ends = int32(0, 0, 20, 30)
        return int32(3, 100, 0), ends, tables(3), BLOCK_SIZE, *written(40), last

    both(pair, "locate_decode", decode, 2)
    both(pair, "locate_prefill", prefill, 3)


@pytest.mark.parametrize(("rows", "kv_heads"), [(1, 8), (16, 8), (64, 3), (1000, 8)])
def test_splits_fill_the_processors_and_no_more(rows: int, kv_heads: int) -> None:
    splits = DecodeTiling(programs=3).splits(rows, kv_heads, 1 << 20, 131)
    assert splits == 1 or rows * kv_heads * splits <= 3 * 131
    assert splits == 64 or rows * kv_heads * (splits + 1) > 3 * 131


def test_scratch_holds_every_number_of_rows() -> None:
    kernels = FusedKernels(
        ARCHITECTURE, max_rows=9, capacity=4096, processors=5, chained=False, device="cpu"
    )
    for rows in range(1, 10):
        splits = DecodeTiling().splits(rows, ARCHITECTURE.kv_heads, 4096, 5)
        assert kernels.scratch_heads >= rows * splits * ARCHITECTURE.heads


def test_every_kernel_compiles_for_the_gpu() -> None:
    """In a process of its own, since here the kernels are those of the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(HERE / "compile_kernels.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    pages = 3 if PageAttention.fits(ARCHITECTURE) else 0
    assert done.stdout.count("compiled") == 34 + pages
