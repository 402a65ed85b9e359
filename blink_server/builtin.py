"""The server's own plugin: what it brings itself comes in through the same door as the rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blink_server.hookspecs import Schema, TokenizerLoader, ToolFormatFactory, hookimpl

if TYPE_CHECKING:
    from blink_server.importers.importer import Importer
    from blink_server.text.tokenizers import Tokenizer


@hookimpl
def blink_tokenizers() -> Mapping[str, TokenizerLoader]:
    """`huggingface`: a tokenizer.json of the `tokenizers` library."""
    return {"huggingface": load_huggingface}


@hookimpl
def blink_importers() -> Mapping[str, Importer]:
    """`gguf`: a GGUF file. `hf`: a Hugging Face directory or hub id."""
    from blink_server.importers.importer import import_gguf, import_huggingface

    return {"gguf": import_gguf, "hf": import_huggingface}


@hookimpl
def blink_option_schemas() -> Mapping[str, Mapping[str, Schema]]:
    """The tokenizer's file, which config.json's own schema describes, and nothing else."""
    return {"tokenizer": {"huggingface": {"additionalProperties": False, "properties": {}}}}


@hookimpl
def blink_tool_parsers() -> Mapping[str, ToolFormatFactory]:
    """The families in use; a model's chat template tells which is its own."""
    from blink_server.text.tools.json_formats import Hermes, Llama3Json
    from blink_server.text.tools.mistral import Mistral, MistralArgs
    from blink_server.text.tools.pythonic import Pythonic

    return {
        "hermes": Hermes,
        "pythonic": Pythonic,
        "llama3_json": Llama3Json,
        "mistral": Mistral,
        "mistral_args": MistralArgs,
    }


def load_huggingface(directory: Path, options: Mapping[str, Any]) -> Tokenizer:
    """Load `options["file"]` of a version directory. Raises InvalidModel."""
    from blink_server.text.tokenizers import HuggingFaceTokenizer

    return HuggingFaceTokenizer.load(directory, options)
