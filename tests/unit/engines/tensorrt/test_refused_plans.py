"""Why a plan does not load is said by name. TensorRT's runtime and the driver are fakes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blink_persistent.testing.fake_driver import FakeDriver
from blink_persistent.testing.fake_plan import LAYERS, NAMES, PLAN, POOLS, fake_version, provision
from blink_persistent.testing.fake_tensorrt import FakeEngine, fake_tensorrt
from blink_server.backend import ModelVersion
from blink_server.errors import EngineFailure, MemoryRefused, Unavailable


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def engine(driver: FakeDriver) -> FakeEngine:
    return FakeEngine(driver, NAMES, ["gemm_a_128", "attend_x", "gemm_a_128"], LAYERS)


def failure(found: ModelVersion, module: Any, driver: FakeDriver) -> str:
    """Why a version does not load; whatever was taken is given back."""
    with pytest.raises((Unavailable, EngineFailure)) as refused:
        provision(found, module, driver)
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
    changes: Mapping[str, str],
    reason: str,
) -> None:
    plan = replace(PLAN, **changes).to_json()  # type: ignore[arg-type]
    told = failure(fake_version(tmp_path, plan=plan), fake_tensorrt(engine), driver)
    assert told.startswith(f"{tmp_path / 'model.plan'}: {reason}")
    assert not engine.contexts


def test_what_tensorrt_says_of_a_plan_is_passed_on_once(
    tmp_path: Path, driver: FakeDriver, caplog: pytest.LogCaptureFixture
) -> None:
    module = fake_tensorrt(None, complaint="Magic tag does not match")
    told = failure(fake_version(tmp_path), module, driver)
    assert "TensorRT cannot load the plan: Magic tag does not match" in told
    assert "Magic tag" not in caplog.text


def test_a_plan_of_another_network_is_refused(tmp_path: Path, driver: FakeDriver) -> None:
    other = FakeEngine(driver, [*NAMES[1:], "input_ids"], [], [])
    told = failure(fake_version(tmp_path), fake_tensorrt(other), driver)
    assert "are not those of its config.json ('input_ids' and 1 others)" in told


def test_memory_that_does_not_suffice_is_refused(
    tmp_path: Path, driver: FakeDriver, engine: FakeEngine
) -> None:
    found = fake_version(tmp_path)
    found.config["limits"]["memory_fraction"] = 0.01
    with pytest.raises(MemoryRefused, match="bytes are needed"):
        provision(found, fake_tensorrt(engine), driver)


def test_a_step_that_cannot_be_launched_from_the_device_names_its_layer(
    tmp_path: Path, driver: FakeDriver
) -> None:
    engine = FakeEngine(driver, NAMES, ["gemm_a_128", "attend_x", "host", "gemm_a_128"], LAYERS)
    told = failure(fake_version(tmp_path), fake_tensorrt(engine), driver)
    assert "the prefill step of 2 sequences, 64 tokens cannot be captured" in told
    assert "NODE: HOST" in told
    assert "enqueued by the layer 'layers.0/attention' or one soon after it" in told


def test_a_refused_node_that_is_not_the_graphs_own_hides_no_reason(
    tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(driver, NAMES, ["gemm_a_128", "host"], LAYERS)
    monkeypatch.setattr(driver, "_graph_get_nodes", lambda graph, count: ([], 0))
    told = failure(fake_version(tmp_path), fake_tensorrt(engine), driver)
    assert told.startswith("the prefill step of 2 sequences, 64 tokens cannot be captured: ")
    assert told.endswith("NODE: HOST)")


def test_what_was_taken_by_a_version_that_fails_is_given_back(
    tmp_path: Path, driver: FakeDriver
) -> None:
    engine = FakeEngine(driver, NAMES, ["host"], LAYERS)
    allocated = driver._next
    failure(fake_version(tmp_path), fake_tensorrt(engine), driver)
    assert driver._next > allocated
    pools = {context.addresses[name] for context in engine.contexts for name in POOLS}
    assert pools <= set(driver.freed)


def test_a_step_that_tensorrt_does_not_capture_is_named(
    tmp_path: Path, driver: FakeDriver, engine: FakeEngine
) -> None:
    engine.refuses_capture = True
    told = failure(fake_version(tmp_path), fake_tensorrt(engine), driver)
    assert told == (
        "the prefill step of 2 sequences, 64 tokens cannot be captured: "
        "TensorRT cannot enqueue it: no reason given"
    )
    assert not driver.is_recording
