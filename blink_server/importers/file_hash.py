"""The SHA-256 of files that may take a while to read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from blink_server.errors import InvalidModel, Problem

_CHUNK = 4 << 20


def sha256_of_all(paths: Sequence[Path], progress: Callable[[float], None]) -> dict[str, str]:
    """Digests in hexadecimal by file name; `progress` goes to 1 over all files together.

    Raises `InvalidModel` naming the file that cannot be read.
    """
    digests: dict[str, str] = {}
    done = 0
    for path in paths:
        try:
            total = sum(each.stat().st_size for each in paths)
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                    done += len(chunk)
                    progress(min(done / max(total, 1), 1.0))
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidModel([Problem(path, "", None, f"cannot be read: {reason}")]) from error
        digests[path.name] = digest.hexdigest()
    return digests
