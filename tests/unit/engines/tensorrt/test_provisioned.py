"""How a plan is loaded, and every key captured. TensorRT's runtime and the driver are fakes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blink_persistent.engines import ProvisionLimits
from blink_persistent.engines.tensorrt import flavour
from blink_persistent.engines.tensorrt.engine import TensorRtEngine
from blink_persistent.engines.tensorrt.network import pool_names
from blink_persistent.engines.tensorrt.plan_description import (
    LAYOUT,
    PlanDescription,
    StepRange,
    grid_hash,
)
from blink_persistent.engines.tensorrt.plan_loader import LOGITS, STEP_INPUTS
from blink_persistent.gpu import driver as gpu_driver
from blink_persistent.graph_grid import GraphKey, default_grid
from blink_persistent.testing.fake_tensorrt import (
    STEP_BYTES,
    VERSION,
    FakeDriver,
    FakeEngine,
    fake_tensorrt,
)
from blink_server.backend import ModelVersion
from blink_server.errors import EngineFailure, MemoryRefused, Unavailable
from blink_server.testing.memory_checkpoint import tiny_architecture

GRID = default_grid(4, 64, max_sequences=2, smallest_prefill=16)
PLAN = PlanDescription(
    flavour="full",
    version=VERSION,
    target="sm_89",
    attention="native",
    aliased=True,
    dtype="bfloat16",
    layout=LAYOUT,
    block_size=16,
    max_blocks=4,
    blocks=1000,
    decode=StepRange(sequences=4, tokens=4),
    prefill=StepRange(sequences=2, tokens=64),
    grid=grid_hash(GRID),
    file_bytes=3000,
    architecture=tiny_architecture(),
)
POOLS = [name for layer in range(2) for name in pool_names(layer)]
NAMES = [*STEP_INPUTS, LOGITS, *POOLS, *(f"{name}.out" for name in POOLS)]
LAYERS = [
    {"Name": "layers.0/qkv", "TacticName": "gemm_a"},
    {"Name": "layers.0/attention", "TacticName": "attend"},
    {"Name": "layers.1/qkv", "TacticName": "gemm_a"},
]


class FakeSampler:
    """The last kernel of each step."""

    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver

    def device(self, gpu: Any, tables: Any, logits: int) -> FakeSampler:
        self.logits = logits
        return self

    def record(self, phase: int, count: int, stream: Any) -> None:
        self._driver.tell("sample")
        self._driver.enqueue([f"sample{phase}:{count}"])


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver()
    monkeypatch.setattr(gpu_driver, "cuda_driver", lambda: made)
    return made


@pytest.fixture
def engine(driver: FakeDriver) -> FakeEngine:
    return FakeEngine(driver, NAMES, ["gemm_a_128", "attend_x", "gemm_a_128"], LAYERS)


def version(directory: Path, **options: Any) -> ModelVersion:
    """A version whose plan is 3,000 bytes of nothing."""
    (directory / "model.plan").write_bytes(bytes(PLAN.file_bytes))
    (directory / "graph_grid.json").write_text(json.dumps(GRID.to_json()))
    named = {"name": "tensorrt", "plan": PLAN.to_json(), "block_count": 50}
    limits = {"context_length": 64, "max_rows": 4, "max_prefill_tokens": 64}
    config = {"engine": named | options, "limits": limits, "eos_token_ids": [2]}
    return ModelVersion("m", 1, directory, config)


def provision(
    version: ModelVersion,
    module: Any,
    driver: FakeDriver,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    monkeypatch.setattr(flavour.Flavour, "load", lambda self: module)
    sampler: Any = FakeSampler(driver)
    limits = ProvisionLimits(threads=1, sampler=sampler, exclusive=driver.exclusive)
    return TensorRtEngine().provision(version, GRID, limits, progress=lambda stage, part: None)


@pytest.fixture
def served(
    tmp_path: Path, driver: FakeDriver, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> Any:
    made = provision(version(tmp_path), fake_tensorrt(engine), driver, monkeypatch)
    yield made
    made.close()


def context_of(engine: FakeEngine, key: GraphKey) -> Any:
    tokens, n = (key.tokens,), (key.sequences,)
    (found,) = [
        context
        for context in engine.contexts
        if (context.shapes["token_ids"], context.shapes["lengths"]) == (tokens, n)
        and context.profile == key.phase
    ]
    return found


def test_each_key_has_a_context_and_all_share_memory(served: Any, engine: FakeEngine) -> None:
    assert len(engine.contexts) == len(GRID.keys)
    assert {context.strategy for context in engine.contexts} == {"user managed"}
    ((memory, size),) = {context.memory for context in engine.contexts}
    assert (memory > 0, size) == (True, STEP_BYTES)
    for key in GRID.keys:
        context = context_of(engine, key)
        assert context.shapes["cu_seqlens"] == (key.sequences + 1,)
        assert context.shapes["block_tables"] == (key.sequences, 4)
        assert {context.shapes[name] for name in POOLS} == {(50, 2, 16, 16)}


def test_a_step_reads_the_schedulers_buffers_and_writes_pools_in_place(
    served: Any, engine: FakeEngine
) -> None:
    for key in GRID.keys:
        addresses, buffers = context_of(engine, key).addresses, served.tables.buffers[key.phase]
        for name in STEP_INPUTS:
            assert addresses[name] == getattr(buffers, name)
        assert addresses[LOGITS] == served.logits
        assert len({addresses[name] for name in POOLS}) == len(POOLS)
        assert all(addresses[name] == addresses[f"{name}.out"] for name in POOLS)


def test_a_graph_is_the_plans_kernels_and_the_sampler(served: Any, driver: FakeDriver) -> None:
    made = {call for call in driver.calls if "instantiate" in call}
    step = "gemm_a_128 attend_x gemm_a_128"
    assert made == {f"[instantiate {step} sample{key.phase}:{key.sequences}]" for key in GRID.keys}
    assert len(served.graphs) == len(GRID.keys)
    assert all(served.graphs)


def test_keys_are_run_and_waited_for_before_any_is_captured(
    served: Any, driver: FakeDriver
) -> None:
    """Contexts and first runs are in slices: they may wait for resident kernels."""
    calls = driver.calls
    runs = calls[: next(i for i, call in enumerate(calls) if "instantiate" in call)]
    first = ["[context]", "[enqueue]", "[synchronize]", "sample"]
    assert [call for call in runs if call in first and call != "synchronize"][:4] == first
    count = len(GRID.keys)
    assert [runs.count(call) for call in first[:3]] == [count] * 3
    assert calls.count("enqueue") == count
    assert "context" not in calls


def test_what_is_given_back_goes_in_the_order_that_it_depends_on(
    tmp_path: Path, driver: FakeDriver, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = provision(version(tmp_path), fake_tensorrt(engine), driver, monkeypatch)
    engine.contexts.clear()
    before = len(driver.calls)
    made.close()
    gone = [call for call in driver.calls[before:] if "synchronize" not in call]
    kinds = list(dict.fromkeys(gone))
    assert kinds == ["[cuGraphExecDestroy]", "[context gone]", "[cuMemFree]"]
    assert gone.count("[context gone]") == len(GRID.keys)
    assert "engine" not in vars(made.loaded)


def failure(
    found: ModelVersion, module: Any, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Why a version does not load; whatever was taken is given back."""
    with pytest.raises((Unavailable, EngineFailure)) as refused:
        provision(found, module, driver, monkeypatch)
    return str(refused.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": "10.16.1.11"}, "was built by TensorRT 10.16.1.11, this is 11.4.0.106: build"),
        (
            {"target": "sm_90"},
            "was built for sm_90, this GPU is sm_89: build the version with --target sm_89",
        ),
    ],
)
def test_a_plan_for_another_machine_is_named(
    tmp_path: Path,
    driver: FakeDriver,
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    changes: Mapping[str, str],
    reason: str,
) -> None:
    plan = replace(PLAN, **changes).to_json()  # type: ignore[arg-type]
    told = failure(version(tmp_path, plan=plan), fake_tensorrt(engine), driver, monkeypatch)
    assert told.startswith(f"{tmp_path / 'model.plan'}: {reason}")
    assert not engine.contexts


def test_what_tensorrt_says_of_a_plan_is_passed_on(
    tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = fake_tensorrt(None, complaint="Magic tag does not match")
    told = failure(version(tmp_path), module, driver, monkeypatch)
    assert "TensorRT cannot load the plan: Magic tag does not match" in told


def test_a_plan_of_another_network_is_refused(
    tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = FakeEngine(driver, [*NAMES[1:], "input_ids"], [], [])
    told = failure(version(tmp_path), fake_tensorrt(other), driver, monkeypatch)
    assert "are not those of its config.json ('input_ids' and 1 others)" in told


def test_memory_that_does_not_suffice_is_refused(
    tmp_path: Path, driver: FakeDriver, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = version(tmp_path)
    found.config["limits"]["memory_fraction"] = 0.01
    with pytest.raises(MemoryRefused, match="bytes are needed"):
        provision(found, fake_tensorrt(engine), driver, monkeypatch)


def test_a_step_that_cannot_be_launched_from_the_device_names_its_layer(
    tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(driver, NAMES, ["gemm_a_128", "attend_x", "host", "gemm_a_128"], LAYERS)
    told = failure(version(tmp_path), fake_tensorrt(engine), driver, monkeypatch)
    assert "the prefill step of 2 sequences, 64 tokens cannot be captured" in told
    assert "NODE: HOST" in told
    assert "enqueued by the layer 'layers.0/attention' or one soon after it" in told


def test_what_was_taken_by_a_version_that_fails_is_given_back(
    tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(driver, NAMES, ["host"], LAYERS)
    allocated = driver._next
    failure(version(tmp_path), fake_tensorrt(engine), driver, monkeypatch)
    assert driver._next > allocated
    pools = {context.addresses[name] for context in engine.contexts for name in POOLS}
    assert pools <= set(driver.freed)


def test_the_rest_is_captured_in_the_background(
    tmp_path: Path, driver: FakeDriver, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: dict[int, Any] = {}
    found = version(tmp_path, capture="background")
    made = provision(found, fake_tensorrt(engine), driver, monkeypatch)
    try:
        missing = made.captured.missing()
        made.complete(published.__setitem__).result(timeout=30)
        assert sorted(published) == missing
        assert made.captured.missing() == []
    finally:
        made.close()


def test_memory_is_estimated_without_tensorrt(tmp_path: Path) -> None:
    found = version(tmp_path)
    few = TensorRtEngine().estimate(found)
    found.config["engine"]["block_count"] = 150
    assert TensorRtEngine().estimate(found) - few == 100 * 16 * 2 * 2 * 2 * 16 * 2
