"""A version with a plan that holds nothing, for the engine `tensorrt` over fakes of a GPU's calls.

loaded = provision(fake_version(directory), fake_tensorrt(engine), driver)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

from blink_persistent.engines import ProvisionLimits
from blink_persistent.engines.tensorrt.engine import TensorRtEngine
from blink_persistent.engines.tensorrt.flavour import Flavour
from blink_persistent.engines.tensorrt.network import pool_names
from blink_persistent.engines.tensorrt.plan_description import (
    LAYOUT,
    PlanDescription,
    StepRange,
    grid_hash,
)
from blink_persistent.engines.tensorrt.plan_loader import LOGITS, STEP_INPUTS
from blink_persistent.gpu import driver as gpu_driver
from blink_persistent.graph_grid import default_grid
from blink_persistent.testing.fake_driver import FakeDriver
from blink_persistent.testing.fake_tensorrt import VERSION
from blink_server.backend import ModelVersion
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


def fake_version(directory: Path, **options: Any) -> ModelVersion:
    """A version whose plan is 3,000 bytes of nothing; `options` go over the engine's."""
    (directory / "model.plan").write_bytes(bytes(PLAN.file_bytes))
    (directory / "graph_grid.json").write_text(json.dumps(GRID.to_json()))
    named = {"name": "tensorrt", "plan": PLAN.to_json(), "block_count": 50}
    limits = {"context_length": 60, "max_rows": 4, "max_prefill_tokens": 64}
    config = {"engine": named | options, "limits": limits, "eos_token_ids": [2]}
    return ModelVersion("m", 1, directory, json.loads(json.dumps(config)))


def provision(version: ModelVersion, module: Any, driver: FakeDriver) -> Any:
    """The version on the GPU that is none, with `module` as its TensorRT."""
    sampler: Any = FakeSampler(driver)
    limits = ProvisionLimits(threads=1, sampler=sampler, exclusive=driver.exclusive)
    with (
        mock.patch.object(Flavour, "load", return_value=module),
        mock.patch.object(gpu_driver, "cuda_driver", return_value=driver),
    ):
        engine = TensorRtEngine()
        return engine.provision(version, GRID, limits, progress=lambda stage, part: None)
