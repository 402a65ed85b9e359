"""Pairs of tokenizers of one tokenizer.json: the library's and the native one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest

from blink_bpe.tokenizer import BlinkBpeTokenizer
from blink_server.testing.bpe_families import FAMILIES, trained_tokenizer
from blink_server.text.tokenizers import HuggingFaceTokenizer

Pair = tuple[HuggingFaceTokenizer, BlinkBpeTokenizer]
MakePair = Callable[[Mapping[str, Any]], Pair]

_CORPUS = [
    "Hello world, it's the quick brown fox's lazy dog! We'll see, THEY'RE 12345 or 2026.",
    "def main() -> None:\n    return {'key': [1, 2, 3]}\r\n\r\n\tx = y\n\n\n    # comment",
    "héllo wörld, ça va? 你好世界 今天天气很好。 こんにちは 한국어 Привет мир",
    "😀😀 👩‍🚀 ½ ⅷ \uff11\uff12\uff13  　 a\u0301 e\u0301 \u00a0\u2003",
]


@cache
def serialized(family: str) -> str:
    return trained_tokenizer(family, _CORPUS * 3, 450)


def pair_of(document: Mapping[str, Any]) -> Pair:
    library = HuggingFaceTokenizer(json.dumps(document))
    return library, BlinkBpeTokenizer(library)


@pytest.fixture(scope="session", params=FAMILIES)
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The tokenizer.json of each family."""
    read: dict[str, Any] = json.loads(serialized(request.param))
    return read


@pytest.fixture(scope="session")
def pair(document: dict[str, Any]) -> Pair:
    """Both tokenizers of each family."""
    return pair_of(document)


@pytest.fixture(scope="session")
def gpt2() -> dict[str, Any]:
    """The tokenizer.json of one family; who changes it takes a copy."""
    read: dict[str, Any] = json.loads(serialized("gpt2"))
    return read


@pytest.fixture(scope="session")
def make_pair() -> MakePair:
    """Makes both tokenizers of a tokenizer.json."""
    return pair_of
