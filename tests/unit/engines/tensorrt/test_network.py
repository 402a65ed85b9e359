"""The network that is really built, evaluated in numpy, agrees with the plain decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from blink_persistent.engines.tensorrt.weights import NetworkWeights
from blink_persistent.testing.network_decoder import NetworkDecoder
from blink_persistent.testing.step_parts import INACTIVE, Part
from blink_server.testing.llama_reference import Forward, forward
from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture

TOLERANCE = 2e-5

Array = npt.NDArray[Any]


class Case:
    """One random model, its steps and its plain answer."""

    def __init__(
        self,
        trt: Any,
        builder: Any,
        changes: dict[str, Any],
        *,
        dtype: npt.DTypeLike = np.float32,
        native_experts: bool = False,
    ) -> None:
        self.architecture = tiny_architecture(**changes)
        checkpoint = random_checkpoint(self.architecture, seed=3)
        weights = NetworkWeights(
            {name: tensor.astype(dtype) for name, tensor in checkpoint.dequantized().items()}
        )
        self.plain = {
            name: weights[name].astype(np.float32) for name in self.architecture.tensor_shapes()
        }
        self.paged = NetworkDecoder(
            trt, builder, self.architecture, weights, native_experts=native_experts
        )
        self.random = np.random.default_rng(5)

    def tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.random.integers(0, self.architecture.vocabulary_size, count).tolist())

    def expect(self, token_ids: tuple[int, ...]) -> Forward:
        return forward(self.architecture, self.plain, token_ids)


MakeCase = Callable[..., Case]


@pytest.fixture
def make_case(trt: Any, builder: Any) -> MakeCase:
    return lambda **changes: Case(trt, builder, changes)


def close(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_a_prompt_in_one_step(make_case: MakeCase, family: dict[str, Any]) -> None:
    case = make_case(**family)
    prompt = case.tokens(37)
    found = case.paged.prefill([Part((7, 2, 5), 0, prompt)])
    expected = case.expect(prompt)
    close(found[0], expected.logits[-1])
    entries = case.paged.entries((7, 2, 5), 37)
    close(entries[:, 0], expected.keys)
    close(entries[:, 1], expected.values)


def test_chunks_from_their_start_positions(make_case: MakeCase, family: dict[str, Any]) -> None:
    case = make_case(**family)
    prompt, blocks = case.tokens(45), (9, 1, 4)
    for start, end in ((0, 20), (20, 21), (21, 45)):
        found = case.paged.prefill([Part(blocks, start, prompt[start:end])])
        close(found[0], case.expect(prompt[:end]).logits[-1])


def test_packed_prompts_in_a_larger_key(make_case: MakeCase, family: dict[str, Any]) -> None:
    """Three prompts and a later chunk; unused sequences and stale tokens behind them."""
    case = make_case(**family)
    prompts = [case.tokens(count) for count in (1, 18, 5, 22)]
    tables = [(3,), (12, 11), (6,), (20, 8)]
    case.paged.prefill([Part(tables[3], 0, prompts[3][:9])])
    parts = [
        Part(table, start, prompt[start:])
        for table, start, prompt in zip(tables, (0, 0, 0, 9), prompts, strict=True)
    ]
    found = case.paged.prefill(parts, sequences=8, tokens=64)
    for logits, prompt in zip(found, prompts, strict=True):
        close(logits, case.expect(prompt).logits[-1])
    untouched = sorted(set(range(32)) - {block for table in tables for block in table})
    for name, pool in case.paged.pools.items():
        assert not pool[untouched].any(), f"{name}: a block of nobody was written"


def test_decode_over_block_tables_with_inactive_rows(
    make_case: MakeCase, family: dict[str, Any]
) -> None:
    case = make_case(**family)
    texts = [case.tokens(count) for count in (15, 40, 3)]
    tables = [(5, 17), (30, 2, 9), (4,)]
    for table, text in zip(tables, texts, strict=True):
        case.paged.prefill([Part(table, 0, text[:-1])])
    first, second, third = (
        Part(table, len(text) - 1, text[-1:]) for table, text in zip(tables, texts, strict=True)
    )
    found = case.paged.decode([first, INACTIVE, second, third, INACTIVE], rows=8)
    for row, text in ((0, texts[0]), (2, texts[1]), (3, texts[2])):
        close(found[row], case.expect(text).logits[-1])
    assert np.isfinite(found).all()
    for name, pool in case.paged.pools.items():
        assert not pool[0].any(), f"{name}: an inactive row wrote to the null block"
    close(case.paged.entries(tables[1], 40)[:, 0], case.expect(texts[1]).keys)


def test_decode_goes_on_token_by_token_across_a_block(make_case: MakeCase) -> None:
    case = make_case()
    text, blocks = case.tokens(20), (13, 14)
    case.paged.prefill([Part(blocks, 0, text[:14])])
    for end in range(15, 21):
        found = case.paged.decode([Part(blocks, end - 1, text[end - 1 : end])])
        close(found[0], case.expect(text[:end]).logits[-1])


def test_in_bfloat16_logits_stay_close(trt: Any, builder: Any, family: dict[str, Any]) -> None:
    """The bound is on the errors' root mean square, as a share of the logits' spread."""
    case = Case(trt, builder, family, dtype=ml_dtypes.bfloat16)
    text = case.tokens(30)
    case.paged.prefill([Part((4, 3), 0, text[:-1])])
    found = case.paged.decode([Part((4, 3), 29, text[-1:])])[0]
    expected = case.expect(text).logits[-1]
    assert found.dtype == np.float32
    error = np.sqrt(np.mean((found - expected) ** 2)) / expected.std()
    assert 0 < error < 0.02


def test_experts_by_the_modules_own_layer(trt: Any, builder: Any) -> None:
    changes = {"family": "qwen3_moe", "experts": 5, "experts_per_token": 2}
    case = Case(trt, builder, changes, native_experts=True)
    prompt = case.tokens(21)
    found = case.paged.prefill([Part((7, 2), 0, prompt)])
    close(found[0], case.expect(prompt).logits[-1])


@pytest.mark.parametrize("seed", range(3))
def test_requests_come_and_go_in_mixed_steps(trt: Any, builder: Any, seed: int) -> None:
    """Chunks of prompts and rows that decode share steps; blocks come as they are needed."""
    case = Case(trt, builder, {"head_dim": 8})
    random = np.random.default_rng(seed)
    texts = [case.tokens(int(count)) for count in random.integers(2, 60, 6)]
    free = random.permutation(np.arange(1, 32)).tolist()
    tables: list[list[int]] = [[] for _ in texts]
    done = [0] * len(texts)
    while unfinished := [i for i, text in enumerate(texts) if done[i] < len(text)]:
        chosen = random.permutation(unfinished)[: random.integers(1, 5)].tolist()
        parts = []
        for i in chosen:
            end = min(len(texts[i]), done[i] + int(random.choice([1, 1, 7, 20])))
            while len(tables[i]) * 16 < end:
                tables[i].append(free.pop())
            parts.append(Part(tuple(tables[i]), done[i], texts[i][done[i] : end]))
            done[i] = end
        packed = sum(len(part.token_ids) for part in parts)
        found = case.paged.prefill(parts, sequences=5, tokens=packed + int(random.integers(9)))
        for i, logits in zip(chosen, found, strict=True):
            close(logits, case.expect(texts[i][: done[i]]).logits[-1])


def test_blocks_that_requests_share_are_read_by_both(make_case: MakeCase) -> None:
    case = make_case()
    shared, ends = case.tokens(16), [case.tokens(5), case.tokens(9)]
    case.paged.prefill([Part((6,), 0, shared)])
    parts = [Part((6, 20 + i), 16, end) for i, end in enumerate(ends)]
    found = case.paged.prefill(parts)
    for logits, end in zip(found, ends, strict=True):
        close(logits, case.expect(shared + end).logits[-1])


def test_what_lies_beyond_a_requests_entries_has_no_effect(
    make_case: MakeCase, family: dict[str, Any]
) -> None:
    """NaN in every entry that nobody has written: those of the null block among them."""
    case = make_case(**family)
    for pool in case.paged.pools.values():
        pool[:] = np.nan
    texts = [case.tokens(count) for count in (3, 40, 22)]
    tables = [(4,), (30, 2, 9), (6, 20)]
    prompts = [Part(table, 0, text[:-2]) for table, text in zip(tables, texts, strict=True)]
    found = case.paged.prefill(prompts, sequences=8, tokens=64)
    for logits, text in zip(found, texts, strict=True):
        close(logits, case.expect(text[:-2]).logits[-1])
    nexts = [
        Part(table, len(text) - 2, text[-2:-1]) for table, text in zip(tables, texts, strict=True)
    ]
    found = case.paged.decode([INACTIVE, *nexts, INACTIVE], rows=8)
    assert np.isfinite(found).all()
    for logits, text in zip(found[1:], texts, strict=False):
        close(logits, case.expect(text[:-1]).logits[-1])
    last = [Part(tables[1], 39, texts[1][-1:]), Part((13,), 0, texts[0])]
    found = case.paged.prefill(last, sequences=4, tokens=16)
    close(found[0], case.expect(texts[1]).logits[-1])
    close(found[1], case.expect(texts[0]).logits[-1])


@pytest.mark.parametrize("part", ["keys", "values"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_entries_that_are_no_numbers_are_their_own_requests_alone(
    make_case: MakeCase, part: str, value: float
) -> None:
    case = make_case()
    texts = [case.tokens(count) for count in (20, 40, 3)]
    tables = [(5, 17), (30, 2, 9), (4,)]
    prompts = [Part(table, 0, text[:-2]) for table, text in zip(tables, texts, strict=True)]
    case.paged.prefill(prompts)
    case.paged.pools[f"kv.0.{part}"][2, :, 3] = value  # of the second
    ends = [
        Part(table, len(text) - 2, text[-2:]) for table, text in zip(tables, texts, strict=True)
    ]
    with np.errstate(invalid="ignore"):
        chunks = case.paged.prefill(ends, sequences=5, tokens=16)
        lasts = [Part(end.blocks, end.start + 1, end.token_ids[1:]) for end in ends]
        rows = case.paged.decode([INACTIVE, *lasts, INACTIVE], rows=8)[1:4]
    for found in (chunks, rows):
        assert np.isnan(found[1]).all(), "the answer would look like one"
        for bystander in (0, 2):
            close(found[bystander], case.expect(texts[bystander]).logits[-1])
