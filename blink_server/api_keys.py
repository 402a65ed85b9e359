"""The file of API keys: one a line; empty lines and those that begin with # are none."""

from __future__ import annotations

import stat
from pathlib import Path

from blink_server.errors import BlinkError


def read_api_keys(path: Path) -> list[str]:
    """The keys. Raises BlinkError: unreadable, without a key, or writable by other users."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BlinkError(f"API key file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BlinkError(f"API key file {path}: is not UTF-8 text") from None
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BlinkError(
            f"API key file {path}: others may write it (mode {stat.S_IMODE(mode):04o}); "
            "must be 0600 or 0644"
        )
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise BlinkError(f"API key file {path}: holds no key; write one a line")
    for number, line in enumerate(lines, 1):
        if not line.startswith("#") and any(c.isspace() or not c.isprintable() for c in line):
            raise BlinkError(f"API key file {path}: line {number}: a key has no spaces")
    return keys
