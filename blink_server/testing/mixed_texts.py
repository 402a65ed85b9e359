"""Text of every kind that a machine has or can make up: code, prose, other scripts, noise."""

from __future__ import annotations

import gzip
import random
import sysconfig
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

DOCUMENTATION = Path("/usr/share/doc")
LONGEST = 1 << 20  # characters of one text

# First and last code points of scripts, symbols and what has no name.
_SCRIPTS = {
    "CJK": ((0x4E00, 0x9FFF), (0x3040, 0x30FF), (0x3000, 0x303F), (0xFF00, 0xFFEF)),
    "Hangul": ((0xAC00, 0xD7A3), (0x1100, 0x11FF), (0x20, 0x2F)),
    "emoji": ((0x1F300, 0x1FAFF), (0x2600, 0x27BF), (0x200D, 0x200D), (0xFE0F, 0xFE0F)),
    "letters": ((0x370, 0x6FF), (0x900, 0xDFF), (0x20, 0x7E)),
    "marks": ((0x61, 0x7A), (0xC0, 0x24F), (0x300, 0x36F), (0x1E00, 0x1EFF)),
    "spaces": (
        (0x9, 0xD),
        (0x20, 0x22),
        (0x85, 0x85),
        (0xA0, 0xA0),
        (0x2000, 0x200F),
        (0x61, 0x63),
    ),
    "all": ((0x0, 0xD7FF), (0xE000, 0x10FFFF)),
}


def mixed_texts(size: int, seed: int) -> Iterator[str]:
    """Texts of `size` bytes of UTF-8 together: files of this machine, every fifth one made up."""
    chooser = random.Random(seed)
    files = cycle(_shuffled(_files(), chooser))
    made = 0
    while made < size:
        for text in (*map(_read, islice(files, 4)), _made_up(chooser)):
            text = text[:LONGEST]
            made += len(text.encode())
            yield text


def _files() -> list[Path]:
    library = Path(sysconfig.get_path("stdlib"))
    code = [path for path in library.rglob("*.py") if "site-packages" not in path.parts]
    documents = [path for path in DOCUMENTATION.rglob("*") if path.is_file()]
    return sorted([*code, *documents])


def _shuffled(files: list[Path], chooser: random.Random) -> list[Path]:
    chooser.shuffle(files)
    return files


def _read(path: Path) -> str:
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except OSError:  # no gzip, or not ours to read
        return ""
    return content.decode(errors="replace")


def _made_up(chooser: random.Random) -> str:
    length = chooser.choice((20, 500, 5_000, 60_000))
    kind = chooser.choice((*_SCRIPTS, "bytes", "one word"))
    if kind == "bytes":
        return chooser.randbytes(length).decode(errors="replace")
    if kind == "one word":
        return "".join(chooser.choices("abcde", k=length))
    ranges = _SCRIPTS[kind]
    return "".join(
        chr(chooser.randint(first, last)) for first, last in chooser.choices(ranges, k=length)
    )
