"""The contract of importers (hook `blink_importers`), and the built-in ones, `gguf` and `hf`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from blink_server.importers.checkpoint import Checkpoint
from blink_server.importers.failure import ModelImportError

Progress = Callable[[str, float], None]
"""Told a stage's name and how much of it is done, 0 to 1; from any thread."""


class Importer(Protocol):
    """Opens one kind of model files as a checkpoint in canonical form."""

    def __call__(self, source: str, *, revision: str | None, progress: Progress) -> Checkpoint:
        """Open what `source` names, and check it whole; weights stay where they are.

        `revision`: what --revision said, for sources that have such. Raises `InvalidModel` with
        every problem's file, field and value, or `ModelImportError` for what is not there.
        """
        ...


def import_gguf(source: str, *, revision: str | None, progress: Progress) -> Checkpoint:
    """A GGUF file. Raises `InvalidModel`, `ModelImportError`."""
    from blink_server.importers.gguf import open_gguf

    if revision is not None:
        raise ModelImportError(f"--revision is of a hub's model; {source} is a file")
    return open_gguf(Path(source), progress=progress)


def import_huggingface(source: str, *, revision: str | None, progress: Progress) -> Checkpoint:
    """A Hugging Face model: its directory, or its id in a hub. Raises as `Importer` says."""
    from blink_server.importers.hf import open_huggingface
    from blink_server.importers.hub import fetch, is_hub_id

    directory, origin = Path(source), {}
    if not directory.exists() and is_hub_id(source):
        directory, commit = fetch(source, revision)
        origin = {"model": source, "revision": commit}
    elif not directory.exists():
        raise ModelImportError(f"{source} is neither a directory nor a hub's id like org/name")
    elif revision is not None:
        raise ModelImportError(f"--revision is of a hub's model; {source} is a directory")
    return open_huggingface(directory, origin=origin, progress=progress)
