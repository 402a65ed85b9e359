"""The native tokenizer through the suite that every tokenizer is tested with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from blink_bpe.tokenizer import BlinkBpeTokenizer
from blink_server.testing import TokenizerContract
from blink_server.testing.contracts.tokenizer import TEXTS
from blink_server.text.tokenizers import HuggingFaceTokenizer, Tokenizer

MakePair = Callable[[Mapping[str, Any]], tuple[HuggingFaceTokenizer, BlinkBpeTokenizer]]


class TestBlinkBpe(TokenizerContract):
    """With GPT-2's words; where the families differ, `test_equality` holds them to the library."""

    @pytest.fixture
    def tokenizer(self, gpt2: dict[str, Any], make_pair: MakePair) -> Tokenizer:
        return make_pair(gpt2)[1]


class TestWithNfc(TokenizerContract):
    texts = tuple(text for text in TEXTS if "e\u0301" not in text)  # which is another one in NFC

    @pytest.fixture
    def tokenizer(self, gpt2: dict[str, Any], make_pair: MakePair) -> Tokenizer:
        return make_pair({**gpt2, "normalizer": {"type": "NFC"}})[1]
