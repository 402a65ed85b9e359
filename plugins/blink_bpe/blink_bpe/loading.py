"""From a version directory to its tokenizer, or to the one that stands in for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blink_bpe.support import UnsupportedTokenizerError
from blink_bpe.tokenizer import BlinkBpeTokenizer
from blink_server.errors import InvalidModel, Problem
from blink_server.text.tokenizers import HuggingFaceTokenizer, Tokenizer

log = logging.getLogger(__name__)


def load(directory: Path, options: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of `options["file"]` (default tokenizer.json).

    Where the file uses something that `blink_bpe` does not support, `options["fallback"]` decides:
    "huggingface" loads the file with the `tokenizers` library instead and logs a warning, without
    it the model is refused. Raises `InvalidModel` naming file, field and value.
    """
    # What the library refuses, or fills in, is refused and filled in here.
    understood = HuggingFaceTokenizer.load(directory, options)
    file = directory / options.get("file", "tokenizer.json")
    try:
        return BlinkBpeTokenizer(understood)
    except UnsupportedTokenizerError as error:
        if options.get("fallback") is None:
            expected = f'{error.reason}; "fallback": "huggingface" in config.json would load it'
            raise InvalidModel([Problem(file, error.field, error.value, expected)]) from None
        log.warning("%s: %s; the tokenizer huggingface is used instead", file, error)
        return understood
