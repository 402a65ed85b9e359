"""Whether a file is still the one that was read: its identity, size, time and mode."""

from __future__ import annotations

from pathlib import Path


def file_signature(file: Path) -> tuple[int, ...] | None:
    """Another one when the file has changed; None where it cannot be looked at."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode
