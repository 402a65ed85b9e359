"""Steps over paged KV agree with the plain numpy decoder, for every family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from blink_persistent.testing.paged_decoder import INACTIVE, Part

Cases = Callable[..., Any]


def test_a_prompt_in_one_step(plain_case: Cases, family: dict[str, Any]) -> None:
    case = plain_case(**family)
    prompt = case.tokens(37)
    found = case.paged.prefill([Part((7, 2, 5), 0, prompt)])
    expected = case.expect(prompt)
    case.close_to(found[0], expected.logits[-1])
    keys, values = case.paged.entries((7, 2, 5), 37).unbind(1)
    case.close_to(keys, expected.keys)
    case.close_to(values, expected.values)


def test_chunks_from_their_start_positions(plain_case: Cases, family: dict[str, Any]) -> None:
    case = plain_case(**family)
    prompt, blocks = case.tokens(45), (9, 1, 4)
    for start, end in ((0, 20), (20, 21), (21, 45)):
        found = case.paged.prefill([Part(blocks, start, prompt[start:end])])
        case.close_to(found[0], case.expect(prompt[:end]).logits[-1])


def test_packed_prompts_in_a_larger_key(make_case: Cases, family: dict[str, Any]) -> None:
    """Three prompts and a later chunk; unused sequences and stale tokens behind them."""
    case = make_case(**family)
    prompts = [case.tokens(count) for count in (1, 18, 5, 22)]
    tables = [(3,), (11, 12), (6,), (20, 8)]
    case.paged.prefill([Part(tables[3], 0, prompts[3][:9])])
    before = case.paged.decoder.cache.pages[:, :, 0].clone()
    starts = (0, 0, 0, 9)
    parts = [
        Part(table, start, prompt[start:])
        for table, start, prompt in zip(tables, starts, prompts, strict=True)
    ]
    found = case.paged.prefill(parts, sequences=8, tokens=64)
    for logits, prompt in zip(found, prompts, strict=True):
        case.close_to(logits, case.expect(prompt).logits[-1])
    untouched = sorted(set(range(32)) - {block for table in tables for block in table})
    pages = case.paged.decoder.cache.pages
    assert torch.equal(pages[:, :, 0], before), "the null block was written"
    assert not pages[:, :, untouched].any(), "a block of nobody was written"


def test_decode_over_block_tables_with_inactive_rows(
    make_case: Cases, family: dict[str, Any]
) -> None:
    case = make_case(**family)
    texts = [case.tokens(count) for count in (15, 40, 3)]
    tables = [(5, 17), (30, 2, 9), (4,)]
    for table, text in zip(tables, texts, strict=True):
        case.paged.prefill([Part(table, 0, text[:-1])])
    first, second, third = (
        Part(table, len(text) - 1, text[-1:]) for table, text in zip(tables, texts, strict=True)
    )
    pages = case.paged.decoder.cache.pages
    null_block = pages[:, :, 0].clone()
    found = case.paged.decode([first, INACTIVE, second, third, INACTIVE], rows=8)
    for row, text in ((0, texts[0]), (2, texts[1]), (3, texts[2])):
        expected = case.expect(text)
        case.close_to(found[row], expected.logits[-1])
    assert torch.equal(pages[:, :, 0], null_block), "an inactive row wrote KV"
    assert torch.isfinite(found).all()
    length = len(texts[1])
    case.close_to(case.paged.entries(tables[1], length)[:, 0], case.expect(texts[1]).keys)


def test_decode_goes_on_token_by_token_across_a_block(make_case: Cases) -> None:
    case = make_case()
    text, blocks = case.tokens(20), (13, 14)
    case.paged.prefill([Part(blocks, 0, text[:14])])
    for end in range(15, 21):
        found = case.paged.decode([Part(blocks, end - 1, text[end - 1 : end])])
        case.close_to(found[0], case.expect(text[:end]).logits[-1])
