"""Provisions the version that a runner was told to serve."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from blink_persistent.backend import PersistentBackend
from blink_persistent.engines import ProvisionLimits
from blink_persistent.graph_grid import GraphGrid
from blink_server.backend import ModelVersion
from blink_server.config import load_graph_grid
from blink_server.control import RunnerEnvironment
from blink_server.errors import BlinkError
from blink_server.json_file import read_json
from blink_server.plugins import load_plugins


def provision(
    environment: RunnerEnvironment,
    *,
    threads: int,
    progress: Callable[[str, float], None],
    exclusive: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> tuple[ModelVersion, Any]:
    """The version, and what its engine made of it (`Provisioned`, or `DeviceProvisioned`).

    `threads` and `exclusive` are `ProvisionLimits`'. Raises BlinkError.
    """
    directory = environment.version_directory
    config = read_json(environment.config_file)
    version = ModelVersion(environment.model, environment.version, directory, config)
    backend = load_plugins().backends[version.config["backend"]]
    if not isinstance(backend, PersistentBackend):
        raise BlinkError(f"this runner serves {PersistentBackend.name!r}, not {backend.name!r}")
    engine = backend.engines[version.config["engine"]["name"]]()
    sampler = backend.samplers[version.config["sampler"]]()
    grid = GraphGrid.from_json(load_graph_grid(directory))
    limits = ProvisionLimits(threads=threads, sampler=sampler, exclusive=exclusive)
    return version, engine.provision(version, grid, limits, progress=progress)
