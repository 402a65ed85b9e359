"""A door with one model behind it, in this process, and frontends that knock at it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from blink_server.backend import Endpoint
from blink_server.catalog import Catalog
from blink_server.errors import Unavailable
from blink_server.messages import CatalogEntry
from blink_server.remote.credentials import Credentials, door_context, open_key_directory
from blink_server.remote.door import Door
from blink_server.remote.gates import GateOptions
from blink_server.remote.host_link import HostLink
from blink_server.remote.messages import Attach
from blink_server.remote.sessions import Sessions
from blink_server.remote.text_files import TextFiles
from blink_server.testing.tiny_repository import write_tiny_version

LAYOUT = "0123456789abcdef"


class FakeGate:
    """Counts what happens to it; its ring has three ranges."""

    free = 3

    def __init__(self, ranges: int) -> None:
        self.lost = asyncio.Event()
        self.offers = self.closed = 0
        self.ranges = ranges
        self.names: list[Mapping[str, Any]] = []

    async def offer(self) -> Mapping[str, Any]:
        self.offers += 1
        return {"transport": "fake", "address": {"number": self.offers}}

    async def connect(self, name: Mapping[str, Any]) -> Mapping[str, Any]:
        if "number" not in name:
            raise ValueError(f"no name: {name}")
        self.names.append(name)
        return {"number": -1}

    def in_use(self) -> int:
        return 7

    def close(self) -> None:
        self.closed += 1
        FakeGate.free += self.ranges


class Site:
    """A host and what reaches it."""

    def __init__(self, entry: CatalogEntry, keep_seconds: float) -> None:
        self.entry = entry
        self.catalog = Catalog()
        self.files = TextFiles()
        self.gates: list[FakeGate] = []
        FakeGate.free = 3
        self.sessions = Sessions("rxe1", keep_seconds, load=lambda _transport: self._open)
        self.door: Door
        self.link: HostLink

    async def _open(self, name: str, _endpoint: Endpoint, options: GateOptions) -> FakeGate:
        assert options.device == "rxe1"
        if options.layout_hash != LAYOUT:
            raise Unavailable(f"{name}: another layout")
        if options.ranges > FakeGate.free:
            raise Unavailable(f"{name}: {FakeGate.free} ranges are free")
        FakeGate.free -= options.ranges
        self.gates.append(FakeGate(options.ranges))
        return self.gates[-1]

    async def start(self, keys: Path, credentials: Credentials) -> None:
        await self.catalog.publish("READY", [self.entry])
        self.files.of(self.entry)
        self.door = Door(credentials.token, self.catalog, self.files, self.sessions)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        await self.door.start(listener, door_context(keys))
        self.link = HostLink("127.0.0.1", self.port, credentials, "dpu-1")

    def asked(self, ranges: int = 1, layout_hash: str = LAYOUT, epoch: int = 1) -> Attach:
        return Attach("fake", "tiny", 1, epoch, ranges, layout_hash)


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys") / "door"
    open_key_directory(directory)
    return directory


@pytest.fixture
def make_site(keys: Path, tmp_path: Path) -> Callable[[float], Any]:
    async def make(keep_seconds: float) -> Site:
        directory = write_tiny_version(tmp_path / "models")
        entry = CatalogEntry(
            *("tiny", 1, 1, "READY", "", str(directory)),
            config={"tokenizer": {"name": "huggingface"}, "chat_template": "chat_template.jinja"},
            aliases=(),
            backend="fake",
            endpoint=Endpoint("shm", {"socket": "/nowhere"}),
        )
        site = Site(entry, keep_seconds)
        await site.start(keys, open_key_directory(keys))
        return site

    return make


@pytest.fixture
async def site(make_site: Callable[[float], Any]) -> AsyncIterator[Site]:
    site = await make_site(600.0)
    yield site
    await site.door.close()
