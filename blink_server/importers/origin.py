"""What a version takes over from the one that it is built of: all but the engine's own files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blink_server.backend import BuildResult, ModelVersion
from blink_server.config import CONFIG_FILE, GRAPH_GRID_FILE
from blink_server.json_file import read_json
from blink_server.repository.names import is_noise


def copy_files(origin: ModelVersion, directory: Path, built: BuildResult) -> None:
    """Copy tokenizer, template and whatever else lies there. Raises OSError."""
    ours = {CONFIG_FILE, GRAPH_GRID_FILE, *built.files, origin.config["engine"].get("file")}
    for path in _files(origin.directory):
        name = path.relative_to(origin.directory)
        if name.as_posix() not in ours:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, directory / name)


def rebuilt_config(origin: ModelVersion, backend: str, built: BuildResult) -> dict[str, Any]:
    """The origin's config.json as it was written, with what the build says of engine and limits.

    Limits that the build leaves open stay; so do warm-up requests, where there are any.
    """
    written = read_json(origin.directory / CONFIG_FILE)
    limits = {**written.get("limits", {}), **built.config["limits"]}
    of_build = {**built.config, "backend": backend, "limits": limits}
    return {**written, **of_build, **{k: written[k] for k in ("warmup",) if k in written}}


def _files(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.rglob("*")):
        within = path.relative_to(directory).parts
        if path.is_file() and not any(is_noise(part) for part in within):
            yield path
