"""Writes one complete version directory of a model repository, all at once or not at all."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink_server.backend import Backend, BuildResult, GpuBackend, ModelVersion
from blink_server.config import (
    CONFIG_FILE,
    GRAPH_GRID_FILE,
    load_graph_grid,
    load_model_config,
)
from blink_server.errors import InvalidModel
from blink_server.importers.checkpoint import Checkpoint
from blink_server.importers.failure import ModelImportError, os_errors_named, problems_named
from blink_server.importers.origin import copy_files, rebuilt_config
from blink_server.importers.scratch import scratch_directory
from blink_server.repository.names import MODEL_NAME_RULE, is_model_name, parse_version
from blink_server.schemas import limit_bounds

SCRATCH_PREFIX = ".import-"
TOKENIZER_FILE = "tokenizer.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a version goes: `<repository>/<name>/<version>`; None is the next free number."""

    repository: Path
    name: str
    version: int | None = None

    @property
    def model_directory(self) -> Path:
        return self.repository / self.name

    def check(self) -> None:
        """Raise `ModelImportError` if the name is no model's, or the version is there already."""
        if not is_model_name(self.name):
            raise ModelImportError(f"the model name {self.name!r} must be {MODEL_NAME_RULE}")
        if self.version is not None and os.path.lexists(self.directory()):
            raise _exists(self.directory())

    def directory(self) -> Path:
        """The version's directory; a free number is looked for at each call."""
        version = self.version
        if version is None:
            taken = [parse_version(name) for name in _names(self.model_directory)]
            version = max((number for number in taken if number is not None), default=0) + 1
        return self.model_directory / str(version)


@dataclass(frozen=True, slots=True)
class WrittenVersion:
    """A version's directory, what its backend said of the build, its limits and their cost."""

    directory: Path
    notes: Sequence[str]
    limits: str


def write_version(
    checkpoint: Checkpoint,
    backend: Backend,
    destination: Destination,
    *,
    limits: Mapping[str, int],
    options: Mapping[str, Any],
    progress: Callable[[str, float], None],
    origin: ModelVersion | None = None,
) -> WrittenVersion:
    """Build the engine for a checkpoint and write everything a version has.

    The files are written and synced in a hidden directory of the repository, checked as the
    server will check them, and renamed into place: a version that can be seen is whole. `limits`
    and `options` hold what the user asks for, as `Backend.build` takes it. `progress` hears of the
    backend's stages and of "write". All but the engine's files comes from the version `origin`, if
    given, and from the checkpoint otherwise. Raises `ModelImportError` (name, existing version,
    limits, disk) and `InvalidModel` (a checkpoint that the backend cannot serve).
    """
    destination.check()
    _check_limits(checkpoint, limits)
    with os_errors_named(destination.repository):
        destination.repository.mkdir(parents=True, exist_ok=True)
        with scratch_directory(destination.repository, SCRATCH_PREFIX) as work:
            with problems_named(work, destination.directory()):
                built = backend.build(
                    checkpoint, work, limits=limits, options=options, progress=progress
                )
                progress("write", 0.0)
                if origin is None:
                    _write_files(work, checkpoint, backend.name, built)
                else:
                    copy_files(origin, work, built)
                    config = rebuilt_config(origin, backend.name, built)
                    _write_texts(work, _engine_texts(config, built))
                version, lacks = _check_written(work, backend, destination)
            limits_told = _tell_limits(checkpoint, version, _tell_memory(backend, version))
            _sync_tree(work)
            directory = _publish(work, destination)
            progress("write", 1.0)
    return WrittenVersion(directory, (*built.notes, *lacks), limits_told)


def version_config(checkpoint: Checkpoint, backend: str, built: BuildResult) -> dict[str, Any]:
    """The config.json of a checkpoint; a field that the backend has set stands above the others."""
    imported: dict[str, Any] = {
        "tokenizer": {"name": "huggingface", "file": TOKENIZER_FILE},
        "chat_template": CHAT_TEMPLATE_FILE if checkpoint.chat_template else None,
        "sampler": "default",
        "eos_token_ids": list(checkpoint.eos_token_ids),
        "bos_token_id": checkpoint.bos_token_id,
        "default_sampling": {"temperature": 1.0, "top_p": 1.0},
        "source": dict(checkpoint.source),
    }
    return {"backend": backend, **built.config, **imported, **built.config}


def _check_limits(checkpoint: Checkpoint, limits: Mapping[str, int]) -> None:
    for name, asked in limits.items():
        least, most = limit_bounds(name)
        if not least <= asked <= most:
            raise ModelImportError(f"limits.{name} is {asked}; must be from {least} to {most}")
    trained = checkpoint.architecture.context_length
    if (asked := limits.get("context_length", 0)) > trained:
        raise ModelImportError(
            f"a context length of {asked} is asked for; the model was made for {trained}"
        )


def _tell_limits(checkpoint: Checkpoint, version: ModelVersion, memory: str) -> str:
    """What the version's limits are, where the model allows for more, and what they take."""
    limits, trained = version.config["limits"], checkpoint.architecture.context_length
    context, rows = limits["context_length"], limits["max_rows"]
    more = f" of the model's {trained} (--context-length)" if context < trained else ""
    return f"context of {context} tokens{more}, {rows} rows (--max-rows): {memory}"


def _tell_memory(backend: Backend, version: ModelVersion) -> str:
    host = f"{backend.estimate(version) >> 20} MiB of the host's memory"
    gpu = backend.estimate_gpu(version) if isinstance(backend, GpuBackend) else 0
    if gpu:
        return f"at least {gpu >> 20} MiB of the GPU's memory, and {host}"
    return f"{host} when all are full"


def _write_files(work: Path, checkpoint: Checkpoint, backend: str, built: BuildResult) -> None:
    config = version_config(checkpoint, backend, built)
    texts = {TOKENIZER_FILE: checkpoint.tokenizer_json, **_engine_texts(config, built)}
    if checkpoint.chat_template:
        texts[CHAT_TEMPLATE_FILE] = checkpoint.chat_template
    _write_texts(work, texts)


def _engine_texts(config: Mapping[str, Any], built: BuildResult) -> dict[str, str]:
    return {CONFIG_FILE: _json(config), GRAPH_GRID_FILE: _json(built.graph_grid)}


def _write_texts(work: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        # Templates and tokens are bytes of the model's: no newline may be translated.
        (work / name).write_text(text, encoding="utf-8", newline="")


def _check_written(
    work: Path, backend: Backend, destination: Destination
) -> tuple[ModelVersion, list[str]]:
    """Look at the files as the server will, so that nothing is published that it would refuse.

    Also gives what this machine lacks to serve them, for the user: another one may have it.
    """
    config = load_model_config(work)
    load_graph_grid(work)
    version = ModelVersion(destination.name, destination.version or 1, work, config)
    problems = backend.check(version)
    if wrong := [problem for problem in problems if not problem.of_machine]:
        raise InvalidModel(wrong)
    return version, [f"this machine cannot serve it: {problem.expected}" for problem in problems]


def _publish(work: Path, destination: Destination) -> Path:
    model_directory = destination.model_directory
    created = not model_directory.exists()
    model_directory.mkdir(exist_ok=True)
    try:
        directory = _rename_to_free(work, destination)
    except BaseException:
        if created:
            with suppress(OSError):  # another import may have put its version there
                model_directory.rmdir()
        raise
    for parent in (model_directory, destination.repository):
        _sync(parent)
    return directory


def _rename_to_free(work: Path, destination: Destination) -> Path:
    """Rename to the wanted number, or to the next free one although others import too."""
    while True:
        directory = destination.directory()
        try:
            if not directory.is_symlink():  # a rename would say less clearly why it cannot
                work.rename(directory)
                return directory
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
        if destination.version is not None:
            raise _exists(directory)


def _exists(directory: Path) -> ModelImportError:
    return ModelImportError(f"{directory} exists already; choose another version or remove it")


def _names(directory: Path) -> list[str]:
    with os_errors_named(directory):
        return [entry.name for entry in directory.iterdir()] if directory.exists() else []


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _sync_tree(root: Path) -> None:
    for directory, _, names in os.walk(root):
        for name in names:
            _sync(Path(directory, name))
        _sync(Path(directory))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
