"""The files that text needs, fetched from the host and kept by content.

<directory>/files/<sha256>        every file once
<directory>/versions/<sha256>/    a version's, under their names; the hash is of names and hashes
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from blink_server.errors import BlinkError, InvalidModel, Problem, Unavailable
from blink_server.remote.host_link import HostLink, expect, send
from blink_server.remote.messages import Fetch, Part
from blink_server.remote.text_files import is_plain_name


class TextCache:
    """Calls belong to one event loop; several processes may share the directory."""

    def __init__(self, directory: Path, host: HostLink) -> None:
        """Raises BlinkError where the directory cannot be made."""
        self._files, self._versions = directory / "files", directory / "versions"
        self._host = host
        try:
            for each in (self._files, self._versions):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BlinkError(f"cache {directory}: {error.strerror}") from None

    async def directory_with(self, files: Mapping[str, str]) -> Path:
        """A directory that has these files, name -> SHA-256. Fetches those that are missing.

        Raises Unavailable where they cannot be had, InvalidModel for names that lead elsewhere.
        """
        for name in files:
            if not is_plain_name(name):
                raise InvalidModel([Problem(Path(name), "", None, "is no name of a model's file")])
        manifest = json.dumps(sorted(files.items())).encode()
        directory = self._versions / hashlib.sha256(manifest).hexdigest()
        missing = [digest for digest in set(files.values()) if not self._has(digest)]
        if missing:
            await self._fetch(missing)
        if not directory.exists():
            self._assemble(directory, files)
        return directory

    def _has(self, digest: str) -> bool:
        path = self._files / digest
        try:
            with path.open("rb") as file:
                whole = hashlib.file_digest(file, "sha256").hexdigest() == digest
        except OSError:
            return False
        if not whole:  # the disk's fault, or somebody's
            path.unlink()
            for version in self._versions.iterdir():
                shutil.rmtree(version, ignore_errors=True)
        return whole

    async def _fetch(self, digests: list[str]) -> None:
        lines = await self._host.open("fetch")
        try:
            for digest in digests:
                data = bytearray()
                while True:
                    send(lines, Fetch(digest, len(data)))
                    part = await expect(lines, Part)
                    data += base64.b64decode(part.data)
                    if len(data) >= part.size or not part.data:
                        break
                self._keep(digest, bytes(data))
        except (OSError, ValueError) as error:
            raise Unavailable(f"the version's files cannot be fetched: {error}") from None
        finally:
            lines.writer.close()

    def _keep(self, digest: str, data: bytes) -> None:
        if hashlib.sha256(data).hexdigest() != digest:
            raise Unavailable(f"the file of SHA-256 {digest} has changed while it was fetched")
        with tempfile.NamedTemporaryFile(dir=self._files, delete=False) as file:
            file.write(data)
        Path(file.name).replace(self._files / digest)

    def _assemble(self, directory: Path, files: Mapping[str, str]) -> None:
        temporary = Path(tempfile.mkdtemp(dir=self._versions))
        for name, digest in files.items():
            target = temporary / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(self._files / digest, target)
        try:
            temporary.rename(directory)
        except OSError:  # another process was faster
            shutil.rmtree(temporary)
