"""Versions of the engine `scripted` in a model repository: a whole server without a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blink_persistent.graph_grid import default_grid
from blink_server.testing.tiny_repository import write_json
from blink_server.testing.tiny_tokenizer import CHAT_TEMPLATE, IM_END, byte_level_tokenizer

VOCABULARY = 400


def write_scripted_version(
    repository: Path,
    model: str = "scripted",
    version: int = 1,
    *,
    limits: Mapping[str, Any] | None = None,
    **engine: Any,
) -> Path:
    """Write a version that `serve` loads; returns its directory.

    `limits` are config.json's, `engine` the options of `ScriptedEngine`. Its answers are text
    without sense, and always the same for the same prompt.
    """
    directory = repository / model / str(version)
    directory.mkdir(parents=True)
    all_limits = {
        **{"context_length": 512, "max_rows": 4, "max_prefill_tokens": 64},
        **{"slots": 512, "max_queue": 64},
        **(limits or {}),
    }
    config = {
        "backend": "blink_persistent",
        "engine": {"name": "scripted", "vocabulary_size": VOCABULARY, **engine},
        "limits": all_limits,
        "chat_template": "chat_template.jinja",
        "eos_token_ids": [IM_END],
    }
    grid = default_grid(all_limits["max_rows"], all_limits["max_prefill_tokens"])
    write_json(directory / "config.json", config)
    write_json(directory / "graph_grid.json", grid.to_json())
    (directory / "tokenizer.json").write_text(byte_level_tokenizer(VOCABULARY), encoding="utf-8")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return directory
