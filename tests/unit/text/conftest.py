"""Tiny tokenizers, made in memory."""

from __future__ import annotations

import pytest

from blink_server.testing.tiny_tokenizer import byte_level_tokenizer, sentencepiece_tokenizer
from blink_server.text.tokenizers import HuggingFaceTokenizer


@pytest.fixture(scope="session")
def byte_level() -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(byte_level_tokenizer())


@pytest.fixture(scope="session")
def sentencepiece() -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(sentencepiece_tokenizer())
