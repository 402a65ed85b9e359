"""What tells that a version directory has changed: which files it holds, their sizes and times."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from blink_server.config import CONFIG_FILE
from blink_server.repository.names import is_noise

SOFT_FIELDS = (
    ("limits", "max_queue"),
    ("default_sampling",),
    ("source",),
    ("warmup",),
    ("$schema",),
)
"""Where config.json may change without a new load."""


class FileStamp(NamedTuple):
    """One file; a link counts as what it leads to."""

    name: str  # relative to the version directory
    inode: int
    size: int  # bytes
    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True, slots=True)
class Stamp:
    """A version directory at one moment; two are equal when nothing has been written in between.

    `directory` is the inode of the directory itself: another one under the same path was put there
    whole.
    """

    directory: int
    files: tuple[FileStamp, ...]

    @property
    def newest_ns(self) -> int:
        """When the last file was written or replaced, in nanoseconds of the wall clock; 0 if none.

        Change times, which no copying tool sets back.
        """
        return max((file.ctime_ns for file in self.files), default=0)

    def content(self, config: Mapping[str, Any]) -> str:
        """A digest of what a load of the version reads; `config` is its effective config.json.

        The same for two stamps where only `SOFT_FIELDS` differ, or the form of config.json.
        """
        files = [file[:4] for file in self.files if file.name != CONFIG_FILE]
        text = json.dumps([files, _hard_fields(config)], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def read_stamp(directory: Path) -> Stamp:
    """The stamp of a version directory; without files where it is not there or cannot be read."""
    try:
        inode = directory.stat().st_ino
    except OSError:
        return Stamp(0, ())
    return Stamp(inode, tuple(sorted(_files(os.fspath(directory), ""))))


def _files(directory: str, prefix: str) -> Iterator[FileStamp]:
    try:
        with os.scandir(directory) as found:
            entries = [entry for entry in found if not is_noise(entry.name)]
    except OSError:
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path, f"{prefix}{entry.name}/")
                continue
            status = entry.stat()
        except OSError:  # it has gone since, or is a link to nothing
            continue
        yield FileStamp(
            prefix + entry.name,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )


def _hard_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    hard = dict(config)
    for *parents, field in SOFT_FIELDS:
        target = hard
        for parent in parents:
            target[parent] = dict(target.get(parent, {}))
            target = target[parent]
        target.pop(field, None)
    return hard
