from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blink_server.testing.tiny_tokenizer import byte_level_tokenizer, sentencepiece_tokenizer
from blink_server.text.detokenizer import Detokenizer
from blink_server.text.tokenizers import HuggingFaceTokenizer

BYTE_LEVEL = HuggingFaceTokenizer(byte_level_tokenizer())
SENTENCEPIECE = HuggingFaceTokenizer(sentencepiece_tokenizer())

texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["😀", "👩‍🚀 go", "naïve 你好", "\U0001f1e9\U0001f1ea", "e\u0301"]
)


def deltas(tokenizer: HuggingFaceTokenizer, ids: list[int], skip: bool = True) -> list[str]:
    decoder = Detokenizer(tokenizer, skip_special_tokens=skip)
    return [decoder.push(token_id) for token_id in ids] + [decoder.finish()]


@given(texts)
def test_deltas_join_to_the_text_and_never_show_a_split_character(text: str) -> None:
    shown = deltas(BYTE_LEVEL, BYTE_LEVEL.encode(text, add_special_tokens=False), skip=False)
    assert "".join(shown) == text
    assert "\ufffd" in text or not any("\ufffd" in delta for delta in shown)


@given(st.lists(st.integers(0, BYTE_LEVEL.vocabulary_size - 1), max_size=40), st.booleans())
def test_any_ids_give_the_librarys_full_decoding(ids: list[int], skip: bool) -> None:
    full = BYTE_LEVEL.decode(ids, skip_special_tokens=skip)
    assert "".join(deltas(BYTE_LEVEL, ids, skip)) == full


@given(texts)
def test_sentencepiece_text_keeps_the_space_of_a_continuation(text: str) -> None:
    ids = SENTENCEPIECE.encode(text, add_special_tokens=False)
    full = SENTENCEPIECE.decode(ids)
    shown = "".join(deltas(SENTENCEPIECE, ids))
    assert shown.removeprefix(" ") == full


def test_an_emoji_split_over_tokens_appears_when_it_is_complete() -> None:
    by_byte = {BYTE_LEVEL.token_bytes(place): place for place in range(BYTE_LEVEL.vocabulary_size)}
    ids = [by_byte[bytes([byte])] for byte in "😀!".encode()]
    decoder = Detokenizer(BYTE_LEVEL)
    shown, pending = [], []
    for token_id in ids:
        shown.append(decoder.push(token_id))
        pending.append(decoder.pending)
    assert shown == ["", "", "", "😀", "!"]
    assert pending == [1, 2, 3, 0, 0]
    assert decoder.finish() == ""


def test_what_stays_incomplete_becomes_one_replacement_character() -> None:
    by_byte = {BYTE_LEVEL.token_bytes(place): place for place in range(BYTE_LEVEL.vocabulary_size)}
    ids = [by_byte[b"a"], *(by_byte[bytes([byte])] for byte in "😀".encode()[:3])]
    assert deltas(BYTE_LEVEL, ids) == ["a", "", "", "", "\ufffd"]
    assert BYTE_LEVEL.decode(ids) == "a\ufffd"


def test_special_tokens_are_skipped_or_shown() -> None:
    assert deltas(BYTE_LEVEL, [2], skip=True) == ["", ""]
    assert deltas(BYTE_LEVEL, [2], skip=False) == ["<|im_end|>", ""]
