"""What an import raises when the machine, not the model, is the reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blink_server.errors import BlinkError


class ModelImportError(BlinkError):
    """An import could not be done; nothing of it is left behind."""


@contextmanager
def os_errors_named(path: Path) -> Iterator[None]:
    """Turn an OSError inside into an `ModelImportError` of one line.

    It names the file that the system complained about, or `path` where the system named none
    (a full disk is noticed by a write, which knows no path).
    """
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else str(path)
        raise ModelImportError(f"{where}: {error.strerror or error}") from error
