"""What an import raises when the machine is the reason, and how it names files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from blink_server.errors import BlinkError, InvalidModel


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


@contextmanager
def problems_named(work: Path, directory: Path) -> Iterator[None]:
    """What is wrong with files in `work` is told of those that they were to become."""
    try:
        yield
    except InvalidModel as error:
        raise InvalidModel(
            [
                replace(problem, file=directory / problem.file.relative_to(work))
                if problem.file.is_relative_to(work)
                else problem
                for problem in error.problems
            ]
        ) from error
