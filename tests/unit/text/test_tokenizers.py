from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from blink_server.errors import InvalidModel, InvalidRequest
from blink_server.testing.tiny_tokenizer import byte_level_tokenizer
from blink_server.text.token_bytes import UnsupportedDecoderError, piece_converter
from blink_server.text.tokenizers import HuggingFaceTokenizer


@pytest.mark.parametrize("text", ["Hello world", " 你好 😀", "<|im_start|>user\nhi<|im_end|>", ""])
def test_encoding_and_decoding_give_the_text_back(
    byte_level: HuggingFaceTokenizer, text: str
) -> None:
    ids = byte_level.encode(text, add_special_tokens=False)
    assert byte_level.decode(ids, skip_special_tokens=False) == text
    assert b"".join(map(byte_level.token_bytes, ids)) == text.encode()


def test_special_tokens_are_known(byte_level: HuggingFaceTokenizer) -> None:
    assert byte_level.special_ids == {0, 1, 2}
    assert byte_level.token_text(2) == "<|im_end|>"
    assert byte_level.encode("<|im_end|>", add_special_tokens=False) == [2]


def test_an_id_outside_the_vocabulary_has_no_bytes(byte_level: HuggingFaceTokenizer) -> None:
    assert byte_level.token_bytes(byte_level.vocabulary_size) == b""
    assert byte_level.token_text(byte_level.vocabulary_size) is None
    assert byte_level.token_bytes(byte_level.vocabulary_size - 1) == b"<plain added>"


def test_a_lone_surrogate_is_the_requests_fault(byte_level: HuggingFaceTokenizer) -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        byte_level.encode("a\ud800", add_special_tokens=False)


def test_sentencepiece_bytes(sentencepiece: HuggingFaceTokenizer) -> None:
    ids = {sentencepiece.token_text(place): place for place in range(sentencepiece.vocabulary_size)}
    assert sentencepiece.token_bytes(ids["▁world"]) == b" world"
    assert sentencepiece.token_bytes(ids["<0xE4>"]) == b"\xe4"


def test_loading_names_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"tokenizer\.json: cannot be read"):
        HuggingFaceTokenizer.load(tmp_path, {})
    (tmp_path / "broken.json").write_text('{"model": 1}')
    with pytest.raises(InvalidModel, match=r"broken\.json: is not a tokenizer"):
        HuggingFaceTokenizer.load(tmp_path, {"file": "broken.json"})
    document = json.loads(byte_level_tokenizer())
    document["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(InvalidModel, match="'WordPiece' is not supported"):
        HuggingFaceTokenizer.load(tmp_path, {"file": "tokenizer.json"})


def test_a_saved_truncation_does_not_cut_prompts() -> None:
    document = json.loads(byte_level_tokenizer())
    document["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    tokenizer = HuggingFaceTokenizer(json.dumps(document))
    assert tokenizer.decode(tokenizer.encode("abcdefg", add_special_tokens=False)) == "abcdefg"


def test_metaspace_alone_is_understood_and_no_decoder_is_not() -> None:
    to_bytes = piece_converter({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"})
    assert to_bytes("▁hé") == " hé".encode()
    assert to_bytes("<0xE4>") == b"<0xE4>"
    with pytest.raises(UnsupportedDecoderError):
        piece_converter(None)


def test_other_threads_run_while_a_long_text_is_encoded(byte_level: HuggingFaceTokenizer) -> None:
    text = "some words and 1234 numbers, " * 20_000
    begun, done = threading.Event(), threading.Event()

    def encode() -> None:
        begun.set()
        byte_level.encode(text, add_special_tokens=False)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait()
    turns = 0
    while not done.is_set():
        turns += 1
    thread.join()
    assert turns > 10_000  # with the lock held it is a few switches' worth


def test_a_panic_of_the_library_is_an_error() -> None:
    document = json.loads(byte_level_tokenizer())
    document["model"]["continuing_subword_prefix"] = "a prefix longer than any token"
    with pytest.raises(ValueError, match="panicked"):
        HuggingFaceTokenizer(json.dumps(document))


def test_no_token_is_longer_than_said(byte_level: HuggingFaceTokenizer) -> None:
    lengths = [len(byte_level.token_bytes(id_)) for id_ in range(byte_level.vocabulary_size)]
    assert 1 < max(lengths) <= byte_level.longest_token
