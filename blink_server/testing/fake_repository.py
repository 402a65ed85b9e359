"""Repositories served by fake runners: versions of the backend `fake`, and its plugin directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blink_server.testing.fake_runner import OPTIONS_FILE
from blink_server.testing.tiny_repository import TINY_CONFIG, write_json, write_tiny_version
from blink_server.testing.tiny_tokenizer import byte_level_tokenizer
from blink_server.text.tokenizers import HuggingFaceTokenizer


def write_fake_version(
    repository: Path, model: str = "echo", version: int = 1, **options: Any
) -> Path:
    """Write a version of the backend `fake`; returns its directory.

    `options` are the fields of its `fake.json` (see `fake_runner`); `answer` may be text.
    """
    if isinstance(text := options.get("answer"), str):
        options["answer"] = token_ids(text)
    directory = write_tiny_version(repository, model, version)
    config = {key: value for key, value in TINY_CONFIG.items() if key not in ("engine", "sampler")}
    write_json(directory / "config.json", {**config, "backend": "fake"})
    if options:
        write_json(directory / OPTIONS_FILE, options)
    return directory


def token_ids(text: str) -> list[int]:
    """What the tokenizer of the versions written here makes of a text."""
    tokenizer = HuggingFaceTokenizer(byte_level_tokenizer())
    return tokenizer.encode(text, add_special_tokens=False)


def write_fake_plugin(directory: Path) -> Path:
    """Make a plugin directory that brings the backend `fake`; returns it."""
    directory.mkdir(mode=0o700)
    plugin = directory / "fake.py"
    plugin.write_text(
        "from blink_server.testing.fake_runner_backend import blink_backends as blink_backends\n"
    )
    plugin.chmod(0o600)
    return directory
