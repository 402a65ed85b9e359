"""The native tokenizer gives the library's ids and texts, whatever the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blink_bpe.support import UnsupportedTokenizerError
from blink_bpe.tokenizer import BlinkBpeTokenizer
from blink_server.text.detokenizer import Detokenizer
from blink_server.text.tokenizers import HuggingFaceTokenizer

Pair = tuple[HuggingFaceTokenizer, BlinkBpeTokenizer]
MakePair = Callable[[Mapping[str, Any]], Pair]

SHARED = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# Where patterns, added tokens and normalization decide: these find more than random text.
PARTS = [
    *"abZ'sStTlLvVrReEdDmM!?.-_",
    *" \t\n\r\u00a0\u3000\u0085",
    *"07\uff19½ⅷ\U00011de0",  # the last: a number by a later Unicode only
    *"你好é\u017f😀\u200d\u0301\u0300가\u1100\u1161\u11a8",
    *"\x00\x04\x13\x7f",
    "'ll",
    "'RE",
    "'\u017f",
    "\r\n\r\n",
    " hello",
    " world",
    "a" * 60,
    "<|im_end|>",
    "<|im_",
    "<think>",
]
WORDS = st.lists(st.sampled_from(PARTS), max_size=30).map("".join)
TEXTS = st.one_of(WORDS, st.text(max_size=60), st.tuples(WORDS, st.text(max_size=5)).map("".join))


def same_ids(pair: Pair, text: str) -> list[int]:
    library, native = pair
    for special in (True, False):
        ids = library.encode(text, add_special_tokens=special)
        assert native.encode(text, add_special_tokens=special) == ids, ascii(text)
    return ids


@SHARED
@given(text=TEXTS)
def test_ids_and_texts_are_the_librarys(pair: Pair, text: str) -> None:
    ids = same_ids(pair, text)
    library, native = pair
    for skip in (True, False):
        expected = library.decode(ids, skip_special_tokens=skip)
        assert native.decode(ids, skip_special_tokens=skip) == expected


@SHARED
@given(data=st.data())
def test_any_ids_are_decoded_alike_whole_and_one_by_one(pair: Pair, data: st.DataObject) -> None:
    library, native = pair
    # Some of them are no tokens.
    ids = data.draw(st.lists(st.integers(0, native.vocabulary_size + 3), max_size=20))
    for skip in (True, False):
        expected = library.decode(ids, skip_special_tokens=skip)
        assert native.decode(ids, skip_special_tokens=skip) == expected
        growing = Detokenizer(native, skip_special_tokens=skip)
        assert "".join([*map(growing.push, ids), growing.finish()]) == expected


def test_tokens_have_the_librarys_bytes_and_names(pair: Pair) -> None:
    library, native = pair
    assert native.vocabulary_size == library.vocabulary_size > 300
    for token_id in (-1, *range(native.vocabulary_size + 2), 2**40):
        if 0 <= token_id < 2**32:  # the library takes no other
            assert native.token_bytes(token_id) == library.token_bytes(token_id)
            assert native.token_text(token_id) == library.token_text(token_id)
        else:
            assert (native.token_bytes(token_id), native.token_text(token_id)) == (b"", None)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 47, 48, 49, 63, 64, 65, 127, 128, 129, 5000])
@pytest.mark.parametrize("unit", ["a", "ab", " ", "1", "é", "你", "😀", "\n", "!", "'s"])
def test_words_of_every_length(pair: Pair, unit: str, size: int) -> None:
    text = unit * size
    same_ids(pair, text)
    same_ids(pair, f"x{text} y")


def test_every_character(pair: Pair) -> None:
    """Each one between others of every class; the native tables are the library's."""
    characters = [chr(code) for code in range(0x3000) if not 0xD800 <= code < 0xE000]
    for around in ("a{}b", " {} ", "1{}2", "'{}e", "!{}\n"):
        same_ids(pair, "".join(around.format(character) for character in characters))


ADDED = st.fixed_dictionaries(
    {
        "content": st.text("ab \n<é\u0301\u00a0_你>", min_size=1, max_size=3),
        "single_word": st.booleans(),
        "lstrip": st.booleans(),
        "rstrip": st.booleans(),
        "normalized": st.booleans(),
        "special": st.booleans(),
    }
)


@SHARED
@given(
    added=st.lists(ADDED, min_size=1, max_size=6),
    texts=st.lists(st.text("ab \n<é\u0301\u00a0_你>", max_size=14), min_size=1, max_size=20),
)
def test_added_tokens_are_found_as_the_library_finds_them(
    document: dict[str, Any],
    make_pair: MakePair,
    added: list[dict[str, Any]],
    texts: list[str],
) -> None:
    vocabulary = document["model"]["vocab"]
    first = max(token["id"] for token in document["added_tokens"]) + 1
    new = {token["content"]: token for token in added}.values()
    entries = [
        {"id": vocabulary.get(token["content"], first + place), **token}
        for place, token in enumerate(new)
    ]
    changed = {**document, "added_tokens": [*document["added_tokens"], *entries]}
    try:
        pair = make_pair(changed)
    except UnsupportedTokenizerError:
        return  # what the library has no answer for, see test_recipe
    library, native = pair
    for text in texts:
        ids = same_ids(pair, text)
        for skip in (True, False):
            expected = library.decode(ids, skip_special_tokens=skip)
            assert native.decode(ids, skip_special_tokens=skip) == expected
