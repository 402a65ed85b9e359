"""Fetches a model's files from a Hugging Face hub, with the `huggingface_hub` library.

The library's own settings hold: HF_ENDPOINT, HF_HOME, HF_TOKEN, HF_HUB_OFFLINE.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from blink_server.importers.failure import ModelImportError
from blink_server.importers.hf_config import CONFIG_FILE, read_architecture
from blink_server.importers.hf_text import (
    GENERATION_CONFIG_FILE,
    TEMPLATE_FILE,
    TEMPLATE_JSON_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
)
from blink_server.importers.safetensors_files import INDEX_FILE, weight_file_names

_SMALL_FILES = (
    CONFIG_FILE,
    GENERATION_CONFIG_FILE,
    TOKENIZER_FILE,
    TOKENIZER_CONFIG_FILE,
    TEMPLATE_FILE,
    TEMPLATE_JSON_FILE,
    INDEX_FILE,
)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_id(text: str) -> bool:
    """Whether a text looks like "organisation/name"."""
    return _HUB_ID.fullmatch(text) is not None


def fetch(hub_id: str, revision: str | None = None) -> tuple[Path, str]:
    """A model's directory in the hub's local cache, and the commit that it is.

    The small files come first, so that a model of another architecture is refused before its
    weights are fetched; files that are in the cache already are not fetched again. Raises
    `InvalidModel` for such a model, `ModelImportError` for one that cannot be fetched.
    """
    directory = _download(hub_id, revision, _SMALL_FILES)
    read_architecture(directory)
    commit = directory.name
    _download(hub_id, commit, weight_file_names(directory))
    return directory, commit


def _download(hub_id: str, revision: str | None, names: Sequence[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ModelImportError(
            f"fetching {hub_id} needs the extra `hub`: pip install 'blink-server[hub]'"
        ) from error
    endpoint = os.environ.get("HF_ENDPOINT") or None
    try:
        return Path(
            snapshot_download(
                hub_id, revision=revision, allow_patterns=list(names), endpoint=endpoint
            )
        )
    except (OSError, ValueError) as error:  # all that the library raises are kinds of these
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelImportError(f"{hub_id} could not be fetched: {reason}") from error
