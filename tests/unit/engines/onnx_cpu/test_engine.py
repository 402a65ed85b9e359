"""The engine as the runner uses it: built, checked, provisioned and stepped by the scheduler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from blink_persistent.engines import ProvisionLimits
from blink_persistent.engines.onnx_cpu.engine import OnnxCpuEngine, OnnxCpuProvisioned
from blink_persistent.engines.onnx_cpu.graph_file import read_model_shape
from blink_persistent.graph_grid import GraphGrid, default_grid
from blink_persistent.samplers.default import DefaultSampler
from blink_persistent.testing.driven_decoder import DrivenDecoder
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.served_engine import ServedEngine
from blink_server.backend import ModelVersion
from blink_server.config import load_graph_grid, load_model_config
from blink_server.errors import InvalidModel
from blink_server.testing.llama_reference import forward
from blink_server.testing.memory_checkpoint import (
    MemoryCheckpoint,
    random_checkpoint,
    tiny_architecture,
)

LIMITS = {"max_rows": 3, "context_length": 64, "max_prefill_tokens": 16}
CHECKPOINT = random_checkpoint(tiny_architecture(), bits=4)


def _ignore(stage: str, fraction: float) -> None:
    pass


def _build(
    directory: Path,
    limits: dict[str, int] | None = None,
    checkpoint: MemoryCheckpoint = CHECKPOINT,
    **options: Any,
) -> ModelVersion:
    built = OnnxCpuEngine().build(
        checkpoint,
        directory,
        limits=LIMITS if limits is None else limits,
        options=options,
        progress=_ignore,
    )
    assert sorted(file.name for file in directory.iterdir()) == sorted(built.files)
    config = {"backend": "blink_persistent", "eos_token_ids": [], **built.config}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "graph_grid.json").write_text(json.dumps(built.graph_grid))
    (directory / "tokenizer.json").write_text(CHECKPOINT.tokenizer_json)
    return ModelVersion("tiny", 1, directory, load_model_config(directory))


@pytest.fixture
def version(tmp_path: Path) -> ModelVersion:
    return _build(tmp_path)


def _provision(version: ModelVersion) -> OnnxCpuProvisioned:
    grid = GraphGrid.from_json(load_graph_grid(version.directory))
    limits = ProvisionLimits(threads=1, sampler=DefaultSampler())
    return OnnxCpuEngine().provision(version, grid, limits, progress=_ignore)


@pytest.fixture
def served(version: ModelVersion) -> Iterator[ServedEngine]:
    with ServedEngine(_provision(version)) as served:
        yield served


def test_requests_get_the_tokens_that_each_would_get_alone(served: ServedEngine, drive: Any):
    lengths = [1, 2, 16, 17, 33, 40, 51]
    requests = [
        ScriptedRequest(
            prompt=tuple(np.random.default_rng(length).integers(0, 101, length).tolist()),
            max_tokens=5 + index,
        )
        for index, length in enumerate(lengths)
    ]
    got = served.answers(requests)
    alone = drive(CHECKPOINT)
    for request, tokens in zip(requests, got, strict=True):
        expected = [int(alone.prefill(0, request.prompt).argmax())]
        while len(expected) < request.max_tokens:
            expected.append(int(alone.decode({0: expected[-1]})[0].argmax()))
        assert tokens == expected


def test_a_context_can_be_filled(served: ServedEngine):
    (tokens,) = served.answers([ScriptedRequest(prompt=tuple(range(50)), max_tokens=14)])
    assert len(tokens) == 14


def test_what_build_wrote_is_accepted(version: ModelVersion):
    engine = OnnxCpuEngine()
    assert list(engine.check(version)) == []
    limits = version.config["limits"]
    assert {name: limits[name] for name in LIMITS} == LIMITS
    grid = GraphGrid.from_json(load_graph_grid(version.directory))
    assert (grid.max_rows, grid.max_sequences, grid.max_prefill_tokens) == (3, 1, 16)
    assert [key.sequences for key in grid.keys if key.phase == 0] == [1, 2, 3]


def test_limits_not_asked_for_fit_the_model(tmp_path: Path):
    limits = _build(tmp_path, limits={}).config["limits"]
    assert (limits["context_length"], limits["max_prefill_tokens"]) == (64, 64)


@pytest.mark.parametrize("context_length", [1, 65])
def test_a_context_that_the_model_was_not_trained_for_is_refused(
    tmp_path: Path, context_length: int
):
    with pytest.raises(InvalidModel, match=r"limits\.context_length"):
        _build(tmp_path, limits={"context_length": context_length})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_claims_any_number_of_positions_is_built_for_a_sound_one(tmp_path: Path):
    endless = random_checkpoint(tiny_architecture(context_length=2**31 - 1), bits=4)
    version = _build(tmp_path, limits={}, checkpoint=endless)
    assert version.config["limits"]["context_length"] == 2048
    assert read_model_shape(tmp_path / "model.onnx").context_length == 131_072
    with pytest.raises(InvalidModel, match=r"limits\.context_length.* this engine's 1048576"):
        _build(tmp_path, limits={"context_length": 1048577}, checkpoint=endless)


def test_the_limit_can_be_raised_to_the_models_context_after_the_build(tmp_path: Path):
    version = _build(tmp_path, limits=LIMITS | {"context_length": 32})
    version.config["limits"]["context_length"] = 64  # type: ignore[index]
    assert _provision(version).shape.context_length == 64
    version.config["limits"]["context_length"] = 65  # type: ignore[index]
    with pytest.raises(InvalidModel, match="context_length: is 65"):
        _provision(version)


def test_the_estimate_counts_full_slabs_and_weights(version: ModelVersion):
    engine = OnnxCpuEngine()
    size = (version.directory / "model.onnx").stat().st_size
    provisioned = _provision(version)
    assert engine.estimate(version) > size + provisioned._decoder.kv.nbytes
    before = engine.estimate(version)
    version.config["limits"]["max_rows"] += 1
    row_bytes = provisioned._decoder.kv.nbytes // 3
    assert engine.estimate(version) == before + row_bytes


def _logits(version: ModelVersion) -> np.ndarray:
    driven = DrivenDecoder(version.directory / "model.onnx")
    logits = driven.prefill(0, range(10, 30))
    driven.decoder.close()
    return logits


def test_a_version_is_computed_as_asked_for_at_its_build(tmp_path: Path):
    versions = {}
    for compute in ("int8", "fp32"):
        (tmp_path / compute).mkdir()
        version = versions[compute] = _build(tmp_path / compute, compute=compute)
        assert version.config["engine"]["compute"] == compute
        _provision(version).close()
    weights = {name: each.astype(np.float64) for name, each in CHECKPOINT.dequantized().items()}
    exact = forward(CHECKPOINT.architecture, weights, list(range(10, 30))).logits[-1]
    assert np.abs(_logits(versions["fp32"]) - exact).max() < 2e-5
    assert np.abs(_logits(versions["int8"]) - exact).max() > 1e-3


@pytest.mark.parametrize(("built", "wanted"), [("int8", "fp32"), ("fp32", "int8")])
def test_a_graph_built_for_another_compute_is_refused(tmp_path: Path, built: str, wanted: str):
    version = _build(tmp_path, compute=built)
    version.config["engine"]["compute"] = wanted
    said = rf"config\.json: engine\.compute: is '{wanted}'; model\.onnx was built for '{built}'"
    with pytest.raises(InvalidModel, match=said):
        _provision(version)


def test_a_version_that_does_not_say_is_int8(version: ModelVersion, tmp_path: Path):
    del version.config["engine"]["compute"]
    _provision(version).close()
    (tmp_path / "exact").mkdir()
    exact = _build(tmp_path / "exact", compute="fp32")
    del exact.config["engine"]["compute"]
    with pytest.raises(InvalidModel, match=r"engine\.compute: is 'int8'"):
        _provision(exact)


def test_a_graph_from_before_compute_was_written_down_is_int8(version: ModelVersion):
    path = version.directory / "model.onnx"
    graph = onnx.load(path, load_external_data=False)
    (entry,) = graph.metadata_props
    description = json.loads(entry.value)
    assert description.pop("compute") == "int8"
    entry.value = json.dumps(description)
    onnx.save(graph, path)
    _provision(version).close()


@pytest.mark.parametrize("options", [{"compute": "fp16"}, {"threads": 2}])
def test_options_that_no_graph_is_built_with_are_refused(tmp_path: Path, options: dict[str, Any]):
    with pytest.raises(InvalidModel, match=next(iter(options))):
        _build(tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_config_without_the_graphs_name_says_so(version: ModelVersion):
    del version.config["engine"]["file"]
    (problem,) = OnnxCpuEngine().check(version)
    assert problem.field == "engine.file"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"thread": 4}, "engine.thread"),
        ({"kv_bytes_per_token": "many"}, "engine.kv_bytes_per_token"),
        ({"kv_bytes_per_token": 0}, "engine.kv_bytes_per_token"),
        ({"compute": "float32"}, "engine.compute"),
        ({"compute": "fp32"}, "engine.compute"),
        ({"kv_bytes_per_token": 1}, "engine.kv_bytes_per_token"),
    ],
)
def test_wrong_options_are_named(version: ModelVersion, options: dict[str, Any], field: str):
    version.config["engine"].update(options)
    (problem,) = OnnxCpuEngine().check(version)
    assert problem.field == field
    with pytest.raises(InvalidModel):
        _provision(version)


def test_a_grid_that_packs_prompts_is_refused(version: ModelVersion):
    grid = default_grid(3, 16, max_sequences=2)
    (version.directory / "graph_grid.json").write_text(json.dumps(grid.to_json()))
    (problem,) = OnnxCpuEngine().check(version)
    assert (problem.field, problem.value) == ("prefill.sequences", 2)
    with pytest.raises(InvalidModel, match=r"prefill\.sequences"):
        _provision(version)


def test_a_damaged_graph_is_named(version: ModelVersion):
    (version.directory / "model.onnx").write_bytes(b"not a graph")
    with pytest.raises(InvalidModel, match=r"model\.onnx"):
        _provision(version)


def test_a_context_that_the_graph_was_not_built_for_is_a_problem(version: ModelVersion):
    version.config["limits"]["context_length"] = 65  # type: ignore[index]
    (problem,) = OnnxCpuEngine().check(version)
    assert (problem.file.name, problem.field) == ("config.json", "limits.context_length")
    assert problem.expected == "must be at most 64, what model.onnx was built for"


def test_a_truncated_graph_is_a_problem(version: ModelVersion):
    path = version.directory / "model.onnx"
    path.write_bytes(path.read_bytes()[:-1000])
    (problem,) = OnnxCpuEngine().check(version)
    assert problem.file == path
