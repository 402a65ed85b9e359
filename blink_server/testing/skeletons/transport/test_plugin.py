from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from blink_persistent.testing.offered_ring import offered_ring
from blink_server.backend import Endpoint, ModelVersion
from blink_server.hookspecs import Connect
from blink_server.testing import TransportContract
from blink_server.testing.skeletons.transport import plugin
from blink_server.testing.with_plugin import plugins_with


class TestMyTransport(TransportContract):
    @pytest.fixture
    def connect(self) -> Connect:
        return plugins_with(plugin).transports["my_plugin"]

    @pytest.fixture
    def version(self) -> ModelVersion:
        return ModelVersion("tiny", 1, Path("nowhere"), {})

    @pytest.fixture
    def endpoint(self) -> Iterator[Endpoint]:
        with tempfile.TemporaryDirectory() as directory, offered_ring(Path(directory)) as ring:
            file = Path(directory, "where")
            file.write_text(ring.address["socket"], encoding="utf-8")
            yield Endpoint("my_plugin", {"file": str(file)})

    @pytest.fixture
    def gone(self, tmp_path: Path) -> Endpoint:
        return Endpoint("my_plugin", {"file": str(tmp_path / "gone")})
