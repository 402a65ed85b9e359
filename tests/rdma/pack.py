"""Pack what the guest's Pythons open into an image: python pack.py IMAGE FOLDER/... MODULE...

The image has the folders, and the files of these modules and of all that they import, with the
libraries that come with them, at the paths that they have here. Whatever is left out is found over
9p, slowly.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_SLACK_BYTES = 16 << 20
_BLOCK = 4096


def opened(modules: list[str]) -> Iterator[Path]:
    """The files that processes with these modules open to start."""
    for name in modules:
        if name.endswith("/"):
            yield from Path(name).rglob("*")
        else:
            importlib.import_module(name)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file is not None:
            yield Path(file)
            if file.endswith(".py"):
                yield Path(importlib.util.cache_from_source(file))
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/" in line:
            yield Path(line[line.index("/") :])
    for distribution in importlib.metadata.distributions():
        # All of them are asked for their entry points.
        yield from (Path(str(distribution._path)).glob("*"))  # type: ignore[attr-defined]
    for folder in {*map(Path, sys.path)}:
        yield from folder.glob("*.pth")


def place(file: Path, root: Path) -> None:
    """Link or copy a file to its path below `root`, whose folders look as those here."""
    target = root.joinpath(*file.parts[1:])
    for folder in reversed(file.parents):
        copy = root.joinpath(*folder.parts[1:])
        if not copy.exists():
            copy.mkdir()
            shutil.copystat(folder, copy)
            os.chown(copy, folder.stat().st_uid, folder.stat().st_gid)
    try:
        target.hardlink_to(file)
    except OSError:  # another file system
        shutil.copy2(file, target)


def main() -> None:
    image, *modules = sys.argv[1:]
    files = {path.resolve() for path in opened(modules)}
    files = {path for path in files if path.is_file() and not path.is_relative_to("/proc")}
    with tempfile.TemporaryDirectory(dir=Path(image).parent) as folder:
        for file in files:
            place(file, Path(folder))
        blocks = sum(-(-file.stat().st_size // _BLOCK) + 1 for file in files)
        size = blocks * _BLOCK * 11 // 10 + _SLACK_BYTES
        Path(image).unlink(missing_ok=True)
        command = [
            *("mke2fs", "-q", "-F", "-t", "ext4", "-b", str(_BLOCK), "-N", str(4 * len(files))),
            *("-m", "0", "-O", "^has_journal,^metadata_csum,^resize_inode"),
            *("-d", folder, image, f"{size >> 10}k"),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
