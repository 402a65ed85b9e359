"""What `blink_persistent` brings, through the suites that plugins are tested with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from blink_persistent.engines import Engine
from blink_persistent.engines.onnx_cpu.engine import OnnxCpuEngine
from blink_persistent.engines.scripted import ScriptedEngine
from blink_persistent.frontend import shm
from blink_persistent.testing.offered_ring import offered_ring
from blink_persistent.testing.scripted_version import write_scripted_version
from blink_server.backend import Backend, Endpoint, ModelVersion
from blink_server.config import load_model_config
from blink_server.hookspecs import Connect
from blink_server.plugins import load_plugins
from blink_server.testing import BackendContract, EngineContract, TransportContract
from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture


def scripted_version(repository: Path) -> ModelVersion:
    directory = write_scripted_version(repository, limits={"context_length": 64})
    return ModelVersion("scripted", 1, directory, load_model_config(directory))


@pytest.mark.slow  # starts a runner for each test of a session
class TestPersistentBackend(BackendContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return load_plugins([]).backends["blink_persistent"]

    @pytest.fixture
    def version(self, tmp_path: Path) -> ModelVersion:
        return scripted_version(tmp_path)


class TestShm(TransportContract):
    @pytest.fixture
    def connect(self) -> Connect:
        return shm.connect

    @pytest.fixture
    def version(self) -> ModelVersion:
        return ModelVersion("tiny", 1, Path("nowhere"), {})

    @pytest.fixture
    def endpoint(self, short_path: Path) -> Iterator[Endpoint]:
        with offered_ring(short_path) as endpoint:
            yield endpoint

    @pytest.fixture
    def gone(self, short_path: Path) -> Endpoint:
        return Endpoint("shm", {"socket": str(short_path / "gone.sock")})


class TestScriptedEngine(EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        return ScriptedEngine()

    @pytest.fixture
    def version(self, tmp_path: Path) -> ModelVersion:
        return scripted_version(tmp_path)


class TestOnnxCpuEngine(EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        return OnnxCpuEngine()

    @pytest.fixture
    def version(self, engine: Engine, tmp_path: Path) -> ModelVersion:
        built = engine.build(
            random_checkpoint(tiny_architecture(), bits=4),
            tmp_path,
            limits={"max_rows": 3, "context_length": 64},
            options={},
            progress=lambda stage, fraction: None,
        )
        config = {"backend": "blink_persistent", "eos_token_ids": [], **built.config}
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "graph_grid.json").write_text(json.dumps(built.graph_grid))
        (tmp_path / "tokenizer.json").write_text("{}")
        return ModelVersion("tiny", 1, tmp_path, load_model_config(tmp_path))
