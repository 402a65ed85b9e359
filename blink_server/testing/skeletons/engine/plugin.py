"""The engine `my_plugin`: the best next token is one above the last. Replace it by yours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blink_persistent.engines import EngineShape, Launch, ProvisionLimits
from blink_persistent.graph_grid import DECODE, GraphGrid
from blink_server.backend import BuildResult, ModelVersion
from blink_server.errors import InvalidModel, Problem
from blink_server.hookspecs import Factory, Schema, hookimpl

VOCABULARY = 400


class MyProvisioned:
    """Fulfils `blink_persistent.engines.Provisioned`: a version, loaded."""

    def __init__(self, version: ModelVersion, grid: GraphGrid, limits: ProvisionLimits) -> None:
        context_length = version.config["limits"]["context_length"]
        self.shape = EngineShape(
            grid=grid,
            context_length=context_length,
            vocabulary_size=VOCABULARY,
            eos_token_ids=tuple(version.config["eos_token_ids"]),
            block_size=16,
            block_count=1 + grid.max_rows * -(-context_length // 16),  # and the null block
            rows_movable=True,  # nothing is kept for a row
        )
        self.host = self.shape.host_engine()
        self._sampling = limits.sampler.host(self.host)
        self._logits = np.zeros((grid.max_rows, VOCABULARY), np.float32)

    def step(self, launch: Launch) -> None:
        inputs = self.host.arrays(launch.phase)
        count = launch.sequences
        if launch.phase == DECODE:
            last = inputs["token_ids"][:count]
        else:  # prompts lie packed: each sequence ends where the next begins
            last = inputs["token_ids"][np.maximum(inputs["cu_seqlens"][1 : count + 1] - 1, 0)]
        self._logits[:] = 0.0
        self._logits[np.arange(count), (last + 1) % VOCABULARY] = 10.0
        self._sampling.sample(launch.phase, count, self._logits)

    def close(self) -> None:
        pass


class MyEngine:
    """Fulfils `blink_persistent.engines.Engine`."""

    def check(self, version: ModelVersion) -> Sequence[Problem]:
        return ()

    def place(self, version: ModelVersion) -> None:
        """It runs on the host's CPU."""

    def estimate(self, version: ModelVersion) -> int:
        return 4 * VOCABULARY * int(version.config["limits"]["max_rows"])

    def build(
        self,
        checkpoint: Any,
        directory: Path,
        *,
        limits: Mapping[str, Any],
        options: Mapping[str, Any],
        progress: Callable[[str, float], None],
    ) -> BuildResult:
        raise InvalidModel([Problem(directory, "engine.name", "my_plugin", "builds no models")])

    def provision(
        self,
        version: ModelVersion,
        grid: GraphGrid,
        limits: ProvisionLimits,
        *,
        progress: Callable[[str, float], None],
    ) -> MyProvisioned:
        return MyProvisioned(version, grid, limits)


@hookimpl
def blink_engines() -> Mapping[str, Factory]:
    return {"my_plugin": MyEngine}


@hookimpl
def blink_option_schemas() -> Mapping[str, Mapping[str, Schema]]:
    return {"engine": {"my_plugin": {"additionalProperties": False, "properties": {}}}}
