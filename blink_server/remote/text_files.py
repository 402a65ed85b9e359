"""What of a version its text needs, by content: so that a frontend elsewhere can have it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from blink_server.errors import Unavailable
from blink_server.messages import CatalogEntry
from blink_server.remote.messages import Fetch, Part

PART_BYTES = 1 << 20
_DEFAULT_TOKENIZER = "tokenizer.json"
_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*")


class TextFiles:
    """Files by their SHA-256; each is read once for as long as it does not change."""

    def __init__(self) -> None:
        self._paths: dict[str, Path] = {}
        self._hashes: dict[tuple[Path, int, int], str] = {}

    def of(self, entry: CatalogEntry) -> dict[str, str]:
        """Name -> SHA-256 of the files of a version that a worker reads. Reads them."""
        directory, found = Path(entry.directory), {}
        for name in names_of_text(entry.config):
            path = directory / name
            if is_plain_name(name) and path.is_file():
                found[name] = self._hash(path)
        return found

    def part(self, asked: Fetch) -> Part:
        """Raises Unavailable where no version has such a file any more."""
        path = self._paths.get(asked.sha256)
        try:
            if path is None:
                raise FileNotFoundError
            with path.open("rb") as file:
                file.seek(max(asked.offset, 0))
                data, size = file.read(PART_BYTES), path.stat().st_size
        except OSError:
            raise Unavailable(f"there is no file of SHA-256 {asked.sha256[:64]!r}") from None
        return Part(base64.b64encode(data).decode("ascii"), size)

    def _hash(self, path: Path) -> str:
        status = path.stat()
        stamp = (path, status.st_mtime_ns, status.st_size)
        if stamp not in self._hashes:
            with path.open("rb") as file:
                self._hashes[stamp] = hashlib.file_digest(file, "sha256").hexdigest()
        digest = self._hashes[stamp]
        self._paths[digest] = path
        return digest


def names_of_text(config: Mapping[str, Any]) -> Iterator[str]:
    """Names of files in a version directory that its config.json gives to text, there or not."""
    options = config.get("tokenizer", {})
    named = {value for value in options.values() if isinstance(value, str)}
    yield from sorted(named - {options.get("name")} | {options.get("file", _DEFAULT_TOKENIZER)})
    if (template := config.get("chat_template")) is not None:
        yield str(template)


def is_plain_name(name: str) -> bool:
    """Whether it stays within its directory, and names nothing hidden."""
    return _NAME.fullmatch(name) is not None
