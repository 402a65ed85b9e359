"""What may be the name of a model and of a version."""

from __future__ import annotations

import re

_MODEL = re.compile(r"[A-Za-z0-9-][A-Za-z0-9._-]*")
_NOISE_SUFFIXES = ("~", ".swp", ".swx", ".tmp", ".part")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")  # fits 64 bits, so that time stamps may be versions

MODEL_NAME_RULE = "letters, digits, '.', '_' and '-', not beginning with '.' or '_'"
VERSION_RULE = "a positive whole number without leading zeros"


def is_model_name(name: str) -> bool:
    """Whether `name` may name a model."""
    return _MODEL.fullmatch(name) is not None


def parse_version(name: str) -> int | None:
    """The version that a directory name means, or None where it means none (`01`, `1.bak`)."""
    return int(name) if _VERSION.fullmatch(name) else None


def is_ignored(name: str) -> bool:
    """Whether an entry of a repository is no model: hidden, private, or a tool's."""
    return name.startswith((".", "_"))


def is_noise(name: str) -> bool:
    """Whether a file below a model is none of its own: hidden, an editor's, or in the making."""
    return name.startswith((".", "#")) or name.endswith(_NOISE_SUFFIXES) or name == "__pycache__"
