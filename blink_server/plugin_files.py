"""Plugin directories: finds plugins in them, refuses what others could change, imports the rest."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from blink_server.plugin_errors import BrokenPlugin, PluginError, place_of


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
    """Run a plugin's module file, as it is now, under a module name of its own.

    Each call makes another module: who holds the one before keeps that. Raises BrokenPlugin, with
    the line of the plugin where its import ended.
    """
    # Two directories may hold modules of one name, and one file may be read again when it has
    # changed; sys.modules must not mix them up.
    unique = f"blink_plugin_{zlib.crc32(bytes(file.resolve())):08x}_{next(_imports)}_{name}"
    search = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(unique, file, submodule_search_locations=search)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        for inner in [each for each in sys.modules if f"{each}.".startswith(f"{unique}.")]:
            del sys.modules[inner]
        raise import_failure(name, str(file), error) from error
    return module


def import_failure(name: str, origin: str, error: BaseException) -> BrokenPlugin:
    """What is said of a plugin whose import has raised `error`."""
    place = place_of(error)
    what = f"cannot be imported: {type(error).__name__}: {error}"
    return BrokenPlugin(name, origin, what if place is None else f"{what} [{place}]")


def read_plugin_stamps(directories: Iterable[Path]) -> frozenset[tuple[str, int, int]]:
    """What tells one state of the files below plugin directories from another."""
    found = set()
    for directory in directories:
        for path in directory.rglob("*.py"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                found.add((str(path), status.st_mtime_ns, status.st_size))
    return frozenset(found)


_imports = itertools.count()


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
