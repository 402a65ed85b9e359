"""A step of packed prompts and decode rows together agrees with the plain numpy decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from blink_persistent.testing.paged_decoder import INACTIVE, Part

Cases = Callable[..., Any]


def test_a_chunk_and_rows_in_a_larger_key(make_case: Cases, family: dict[str, Any]) -> None:
    """A chunk from its start position and a whole prompt, beside rows of which some are inactive;
    unused sequences and stale tokens behind the packed ones."""
    case = make_case(**family)
    chunk, prompt, *texts = (case.tokens(count) for count in (20, 3, 5, 18))
    tables = [(5,), (30, 2)]
    before = [Part(table, 0, text[:-1]) for table, text in zip(tables, texts, strict=True)]
    case.paged.prefill([*before, Part((8, 20), 0, chunk[:9])])
    pages = case.paged.decoder.cache.pages
    null_block = pages[:, :, 0].clone()
    first, second = (
        Part(table, len(text) - 1, text[-1:]) for table, text in zip(tables, texts, strict=True)
    )
    packed, rows = case.paged.mixed(
        [Part((8, 20), 9, chunk[9:]), Part((11,), 0, prompt)],
        [first, INACTIVE, second],
        key=(3, 16, 4),
    )
    answers = zip((*packed, rows[0], rows[2]), (chunk, prompt, *texts), strict=True)
    for logits, text in answers:
        case.close_to(logits, case.expect(text).logits[-1])
    assert torch.equal(pages[:, :, 0], null_block), "an inactive row, or nobody's token, wrote KV"
    assert torch.isfinite(rows).all()
    used = {0, 8, 20, 11, *tables[0], *tables[1]}
    assert not pages[:, :, sorted(set(range(32)) - used)].any(), "a block of nobody was written"
    for table, text in ((tables[1], texts[1]), ((8, 20), chunk)):
        keys, values = case.paged.entries(table, len(text)).unbind(1)
        case.close_to(keys, case.expect(text).keys)
        case.close_to(values, case.expect(text).values)


@pytest.mark.parametrize("rows", [1, 3])
def test_both_in_one_are_one_after_the_other(make_case: Cases, rows: int) -> None:
    """The same logits and the same KV entries as a prefill step and then a decode step."""
    alone, together = make_case(), make_case()
    texts = [alone.tokens(count) for count in (7, 18, 3)][:rows]
    prompt = alone.tokens(17)
    tables = [(1, 2), (3, 4), (5, 6)]
    decoding = [
        Part(table, len(text) - 1, text[-1:]) for table, text in zip(tables, texts, strict=False)
    ]
    for case in (alone, together):
        before = [Part(table, 0, text[:-1]) for table, text in zip(tables, texts, strict=False)]
        case.paged.prefill(before)
    coming = [Part((9, 7), 0, prompt)]
    expected = alone.paged.prefill(coming), alone.paged.decode(decoding)
    found = together.paged.mixed(coming, decoding)
    for one, other in zip(found, expected, strict=True):
        together.close_to(one, other.numpy())
    pages = (case.paged.decoder.cache.pages for case in (together, alone))
    torch.testing.assert_close(*pages, atol=2e-5, rtol=2e-5)


def test_nothing_depends_on_what_the_step_before_has_left(
    make_case: Cases, family: dict[str, Any]
) -> None:
    """Nor on the rows behind the step's own, of which products are computed too."""
    case = make_case(**family)
    text, prompt = case.tokens(9), case.tokens(17)
    chunk, row = Part((9, 7), 0, prompt), Part((4,), 8, text[-1:])
    case.paged.prefill([Part((4,), 0, text[:-1])])
    steps: list[Callable[[], tuple[Any, ...]]] = [
        lambda: (case.paged.prefill([chunk]),),
        lambda: case.paged.mixed([chunk], [row]),
    ]
    work = case.paged.decoder.work
    for step in steps:
        expected = step()
        for name in ("residual", "normed", "qkv", "queries", "mixed", "delta", "gate_up", "inner"):
            getattr(work, name).fill_(torch.nan)
        for found, before in zip(step(), expected, strict=True):
            assert torch.isfinite(found).all()
            assert torch.equal(found, before)


def test_rows_without_any_packed_token(make_case: Cases) -> None:
    """And packed tokens without an active row: what the lookup gives when little is to be done."""
    case = make_case()
    text, prompt = case.tokens(17), case.tokens(3)
    case.paged.prefill([Part((4, 6), 0, text[:-1])])
    _, rows = case.paged.mixed([], [Part((4, 6), 16, text[-1:])], key=(2, 16, 4))
    case.close_to(rows[0], case.expect(text).logits[-1])
    packed, _ = case.paged.mixed([Part((9,), 0, prompt)], [INACTIVE], key=(2, 16, 4))
    case.close_to(packed[0], case.expect(prompt).logits[-1])
