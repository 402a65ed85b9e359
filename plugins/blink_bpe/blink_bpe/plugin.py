"""What this package offers through the plugin door; the native module waits for a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blink_server.hookspecs import Schema, TokenizerLoader, hookimpl

if TYPE_CHECKING:
    from blink_server.text.tokenizers import Tokenizer


@hookimpl
def blink_tokenizers() -> Mapping[str, TokenizerLoader]:
    """`blink_bpe`: a tokenizer.json with byte-level BPE, encoded natively."""
    return {"blink_bpe": load_blink_bpe}


@hookimpl
def blink_option_schemas() -> Mapping[str, Mapping[str, Schema]]:
    """`fallback`: what loads a file that uses something `blink_bpe` does not support."""
    fallback = {
        "description": "The tokenizer for a file that this one does not support; null refuses it.",
        "enum": ["huggingface", None],
        "default": None,
    }
    schema = {"additionalProperties": False, "properties": {"fallback": fallback}}
    return {"tokenizer": {"blink_bpe": schema}}


def load_blink_bpe(directory: Path, options: Mapping[str, Any]) -> Tokenizer:
    """Load `options["file"]` of a version directory. Raises InvalidModel."""
    from blink_bpe.loading import load

    return load(directory, options)
