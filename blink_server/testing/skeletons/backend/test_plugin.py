from __future__ import annotations

from pathlib import Path

import pytest

from blink_server.backend import Backend, ModelVersion
from blink_server.testing import BackendContract
from blink_server.testing.skeletons.backend import plugin
from blink_server.testing.with_plugin import plugins_with, version_with


class TestMyBackend(BackendContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return plugins_with(plugin).backends["my_plugin"]

    @pytest.fixture
    def version(self, tmp_path: Path) -> ModelVersion:
        return version_with(plugin, tmp_path, backend="my_plugin")
