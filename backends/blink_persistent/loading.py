"""The version that a runner was told to serve, with the engine and sampler that it names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from blink_persistent.backend import PersistentBackend
from blink_persistent.engines import Engine, ProvisionLimits, Sampler
from blink_persistent.graph_grid import grid_of
from blink_server.backend import ModelVersion
from blink_server.control import RunnerEnvironment
from blink_server.errors import BlinkError
from blink_server.json_file import read_json
from blink_server.plugins import load_plugins


@dataclass(frozen=True, slots=True)
class Assignment:
    """What there is to load."""

    version: ModelVersion
    engine: Engine
    sampler: Sampler

    @classmethod
    def read(cls, environment: RunnerEnvironment) -> Assignment:
        """Raises BlinkError."""
        config = read_json(environment.config_file)
        backend = load_plugins().backends[config["backend"]]
        if not isinstance(backend, PersistentBackend):
            raise BlinkError(f"this runner serves {PersistentBackend.name!r}, not {backend.name!r}")
        return cls(
            ModelVersion(
                environment.model, environment.version, environment.version_directory, config
            ),
            backend.engines[config["engine"]["name"]](),
            backend.samplers[config["sampler"]](config.get("sampler_options", {})),
        )

    def provision(
        self,
        *,
        threads: int,
        progress: Callable[[str, float], None],
        exclusive: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Any:
        """`Provisioned`, or `DeviceProvisioned` for an engine that has a place on a GPU.

        `threads` and `exclusive` are `ProvisionLimits`'. Raises BlinkError.
        """
        limits = ProvisionLimits(threads=threads, sampler=self.sampler, exclusive=exclusive)
        return self.engine.provision(self.version, grid_of(self.version), limits, progress=progress)
