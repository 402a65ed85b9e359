from __future__ import annotations

from pathlib import Path

import pytest

from blink_server.testing import TokenizerContract
from blink_server.testing.skeletons.tokenizer import plugin
from blink_server.testing.with_plugin import plugins_with
from blink_server.text.tokenizers import Tokenizer


class TestMyTokenizer(TokenizerContract):
    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return plugins_with(plugin).tokenizers["my_plugin"](Path(), {})
