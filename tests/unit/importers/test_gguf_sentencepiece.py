"""SentencePiece BPE from a GGUF file, against the algorithm itself: best-scored piece first."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import TokenType
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from blink_server.errors import InvalidModel
from blink_server.importers.gguf import GgufCheckpoint, open_gguf
from blink_server.testing.tiny_gguf import write_tiny_gguf
from blink_server.text.tokenizers import HuggingFaceTokenizer

SPACE = "▁"
SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _pieces() -> list[str]:
    """Pieces in the order of their training: letters, then random joins of what there is."""
    letters = [SPACE, *"abcdeé", "\n"]
    pieces = dict.fromkeys(letters)
    random = np.random.default_rng(5)
    while len(pieces) < 80:
        left, right = random.choice(list(pieces), 2)
        if len(left + right) <= 6:
            pieces[str(left + right)] = None
    joined = [piece for piece in pieces if piece not in letters]
    return [*joined, *letters]


PIECES = _pieces()
TOKENS = [*SPECIAL, *BYTES, *PIECES, "<|tool|>"]
SCORES = [0.0] * (3 + 256) + [-float(rank) for rank in range(len(PIECES))] + [0.0]
TYPES = [
    int(TokenType.UNKNOWN),
    *[int(TokenType.CONTROL)] * 2,
    *[int(TokenType.BYTE)] * 256,
    *[int(TokenType.NORMAL)] * len(PIECES),
    int(TokenType.USER_DEFINED),
]
METADATA: dict[str, Any] = {
    "llama.vocab_size": None,
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": None,
    "tokenizer.ggml.merges": None,
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.scores": SCORES,
    "tokenizer.ggml.token_type": TYPES,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.add_bos_token": None,
}


def open_with(path: Path, **changes: Any) -> GgufCheckpoint:
    fields = METADATA | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    table = np.zeros((len(fields["tokenizer.ggml.tokens"] or []), 64), np.float32)
    write_tiny_gguf(path, metadata=fields, tensors={"token_embd.weight": table})
    return open_gguf(path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> GgufCheckpoint:
    return open_with(tmp_path_factory.mktemp("model") / "m.gguf")


def _sentencepiece(text: str) -> list[str]:
    """Join the neighbours that make the best-scored piece until none do; the rest in bytes."""
    symbols = list(SPACE + text.replace(" ", SPACE)) if text else []
    scores = dict(zip(PIECES, SCORES[3 + 256 :], strict=False))
    while True:
        joins = [
            (-scores[left + right], place)
            for place, (left, right) in enumerate(pairwise(symbols))
            if left + right in scores
        ]
        if not joins:
            break
        _, place = min(joins)
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
    spelled = (
        [symbol] if symbol in scores else [f"<0x{byte:02X}>" for byte in symbol.encode()]
        for symbol in symbols
    )
    return [piece for pieces in spelled for piece in pieces]


@given(text=st.text(alphabet="abcdeé \n😀z", max_size=30))
@settings(max_examples=300, deadline=None)
def test_text_is_merged_as_sentencepiece_does(checkpoint: GgufCheckpoint, text: str) -> None:
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
    assert tokenizer.encode(text, add_special_tokens=False).tokens == _sentencepiece(text)


def test_text_survives_the_way_there_and_back(checkpoint: GgufCheckpoint) -> None:
    tokenizer = HuggingFaceTokenizer(checkpoint.tokenizer_json)
    text = "abc  dé\n\n😀 <|tool|>zz"
    ids = tokenizer.encode(text, add_special_tokens=True)
    assert ids[0] == checkpoint.bos_token_id == 1
    assert TOKENS.index("<|tool|>") in ids
    # A space is put before what follows an added token too, as the original does.
    assert tokenizer.decode(ids) == text.replace("<|tool|>", "<|tool|> ")
    spelled = b"".join(tokenizer.token_bytes(token) for token in ids[1:])
    assert spelled.decode() == " " + text.replace("<|tool|>", "<|tool|> ")


def test_no_space_is_put_before_a_text_where_the_model_wants_none(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(
        open_with(tmp_path / "m.gguf", add_space_prefix=False).tokenizer_json
    )
    encoded = tokenizer.encode(" ab", add_special_tokens=False)
    assert "".join(encoded.tokens) == f"{SPACE}ab"
    assert tokenizer.decode(encoded.ids) == " ab"


def test_only_control_and_unknown_tokens_are_special(checkpoint: GgufCheckpoint) -> None:
    added = Tokenizer.from_str(checkpoint.tokenizer_json).get_added_tokens_decoder()
    assert {added[token].content: added[token].special for token in added} == {
        "<unk>": True,
        "<s>": True,
        "</s>": True,
        "<|tool|>": False,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "tokenizer.ggml.scores: is missing"),
        ({"scores": [0.0]}, f"scores: must have one entry for each of {len(TOKENS)} tokens, has 1"),
        ({"scores": [float("nan")] * len(TOKENS)}, "scores: must be an array of finite numbers"),
        ({"scores": ["a"] * len(TOKENS)}, "scores: must be an array of finite numbers"),
        ({"token_type": [1]}, f"must have one entry for each of {len(TOKENS)} tokens, has 1"),
        ({"token_type": [9] * len(TOKENS)}, "token_type: entry 0 ('<unk>') is 9, not a type"),
        ({"unknown_token_id": 10**6}, "tokenizer.ggml.unknown_token_id: is 1000000"),
        ({"add_space_prefix": 1}, "tokenizer.ggml.add_space_prefix: is 1; must be a boolean"),
    ],
)
def test_vocabularies_that_cannot_be_used_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidModel) as refused:
        open_with(tmp_path / "m.gguf", **changes)
    assert message in str(refused.value)
