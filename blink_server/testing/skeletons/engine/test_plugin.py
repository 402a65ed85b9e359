from __future__ import annotations

from pathlib import Path

import pytest

from blink_persistent.engines import Engine
from blink_server.backend import ModelVersion
from blink_server.testing import EngineContract
from blink_server.testing.skeletons.engine import plugin
from blink_server.testing.with_plugin import plugins_with, version_with


class TestMyEngine(EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        engine: Engine = plugins_with(plugin).engines["my_plugin"]()
        return engine

    @pytest.fixture
    def version(self, tmp_path: Path) -> ModelVersion:
        return version_with(
            plugin, tmp_path, backend="blink_persistent", engine={"name": "my_plugin"}
        )
