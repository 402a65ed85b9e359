"""Every key of a plan is captured. TensorRT's runtime and the driver are fakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blink_persistent.engines.tensorrt.engine import TensorRtEngine
from blink_persistent.engines.tensorrt.plan_loader import LOGITS, STEP_INPUTS
from blink_persistent.graph_grid import GraphKey
from blink_persistent.testing.fake_driver import FakeDriver
from blink_persistent.testing.fake_plan import GRID, LAYERS, NAMES, POOLS, fake_version, provision
from blink_persistent.testing.fake_tensorrt import STEP_BYTES, FakeEngine, fake_tensorrt


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def engine(driver: FakeDriver) -> FakeEngine:
    return FakeEngine(driver, NAMES, ["gemm_a_128", "attend_x", "gemm_a_128"], LAYERS)


@pytest.fixture
def served(tmp_path: Path, driver: FakeDriver, engine: FakeEngine) -> Any:
    made = provision(fake_version(tmp_path), fake_tensorrt(engine), driver)
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


@pytest.mark.parametrize("deterministic", [False, True])
def test_paused_requests_resume_as_the_config_says(
    tmp_path: Path, driver: FakeDriver, engine: FakeEngine, deterministic: bool
) -> None:
    version = fake_version(tmp_path)
    version.config["deterministic"] = deterministic  # type: ignore[index]
    made = provision(version, fake_tensorrt(engine), driver)
    assert (made.shape.deterministic, made.tables.deterministic) == (deterministic, deterministic)
    made.close()


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
    tmp_path: Path, driver: FakeDriver, engine: FakeEngine
) -> None:
    made = provision(fake_version(tmp_path), fake_tensorrt(engine), driver)
    engine.contexts.clear()
    before = len(driver.calls)
    made.close()
    gone = [call for call in driver.calls[before:] if "synchronize" not in call]
    kinds = list(dict.fromkeys(gone))
    assert kinds == ["[cuGraphExecDestroy]", "[context gone]", "[cuMemFree]"]
    assert gone.count("[context gone]") == len(GRID.keys)
    assert "engine" not in vars(made.loaded)


def test_the_rest_is_captured_in_the_background(
    tmp_path: Path, driver: FakeDriver, engine: FakeEngine
) -> None:
    published: dict[int, Any] = {}
    found = fake_version(tmp_path, capture="background")
    made = provision(found, fake_tensorrt(engine), driver)
    try:
        missing = made.captured.missing()
        made.complete(published.__setitem__).result(timeout=30)
        assert sorted(published) == missing
        assert made.captured.missing() == []
    finally:
        made.close()


def test_memory_is_estimated_without_tensorrt(tmp_path: Path) -> None:
    found = fake_version(tmp_path)
    few = TensorRtEngine().estimate(found)
    found.config["engine"]["block_count"] = 150
    assert TensorRtEngine().estimate(found) - few == 100 * 16 * 2 * 2 * 2 * 16 * 2
