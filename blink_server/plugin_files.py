"""Plugin directories: finds plugins in them, refuses what others could change, imports the rest."""

from __future__ import annotations

import importlib.util
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from blink_server.errors import BlinkError


class PluginError(BlinkError):
    """A plugin is refused; the message names it and says why."""


def find_plugin_files(directory: Path) -> dict[str, Path]:
    """Plugin name -> its module file, of one plugin directory, in order of names.

    A plugin is a file `name.py` or a folder `name/` with an `__init__.py`; names that start with
    "." or "_" are none. The directory and every file of a plugin must belong to the user of this
    process, be no symbolic link, and be writable to that user alone. Raises PluginError.
    """
    try:
        entries = sorted(directory.iterdir())
    except OSError as error:
        raise PluginError(f"plugin directory {directory}: {error.strerror}") from None
    found: dict[str, Path] = {}
    for entry in entries:
        file = _module_file(entry)
        if file is None:
            continue
        if entry.stem in found:
            raise PluginError(f"plugins {found[entry.stem]} and {file} have the same name")
        _refuse_unsafe(entry)
        found[entry.stem] = file
    if found:
        _refuse_unsafe_one(directory.resolve())
        if (cache := directory / "__pycache__").exists():
            _refuse_unsafe(cache)
    return found


def import_plugin_file(name: str, file: Path) -> ModuleType:
    """Run a plugin's module file under a module name of its own. Raises PluginError."""
    # Two directories may hold modules of one name; sys.modules must not mix them up.
    unique = f"blink_plugin_{zlib.crc32(bytes(file.resolve())):08x}_{name}"
    search = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(unique, file, submodule_search_locations=search)
    if spec is None or spec.loader is None:
        raise PluginError(f"plugin {name!r} ({file}): not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[unique]
        raise PluginError(
            f"plugin {name!r} ({file}) cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return module


def _module_file(entry: Path) -> Path | None:
    if entry.name.startswith((".", "_")):
        return None
    if entry.suffix == ".py":
        return entry
    init = entry / "__init__.py"
    return init if init.is_file() else None


def _refuse_unsafe(entry: Path) -> None:
    for path in _walk(entry):
        _refuse_unsafe_one(path)


def _walk(entry: Path) -> Iterator[Path]:
    yield entry
    if entry.is_dir() and not entry.is_symlink():
        yield from entry.rglob("*")


def _refuse_unsafe_one(path: Path) -> None:
    status = path.lstat()
    user = os.geteuid()
    if stat.S_ISLNK(status.st_mode):
        raise PluginError(f"plugin {path} is refused: it is a symbolic link")
    if status.st_uid != user:
        raise PluginError(
            f"plugin {path} is refused: it belongs to user {status.st_uid}, "
            f"not to the server's user {user}"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PluginError(
            f"plugin {path} is refused: its mode {stat.S_IMODE(status.st_mode):04o} lets others "
            f"write to it; try: chmod go-w {path}"
        )
