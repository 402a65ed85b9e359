"""The backend `blink_persistent`: ring, persistent scheduler and an engine in a runner process."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blink_persistent.graph_grid import GraphGrid
from blink_server.backend import BuildResult, Endpoint, ModelVersion, Session
from blink_server.config import load_graph_grid
from blink_server.errors import Problem, Unavailable
from blink_server.hookspecs import Connect, Factory

DEFAULT_BUILD_ENGINE = "onnx_cpu"


class PersistentBackend:
    """Fulfils `Backend`; engines, samplers and transports are what plugins registered, by name."""

    name = "blink_persistent"

    def __init__(
        self,
        engines: Mapping[str, Factory],
        samplers: Mapping[str, Factory],
        transports: Mapping[str, Connect],
    ) -> None:
        self.engines = engines
        self.samplers = samplers
        self.transports = transports

    def check(self, version: ModelVersion) -> Sequence[Problem]:
        """Unknown engine or sampler, a grid that does not fit the limits, the engine's problems."""
        config, file = version.config, version.directory / "config.json"
        engine = config.get("engine")
        if engine is None:
            return [Problem(file, "engine", None, f"is missing: one of {', '.join(self.engines)}")]
        problems = [
            *_known(file, "engine.name", engine["name"], self.engines),
            *_known(file, "sampler", config["sampler"], self.samplers),
        ]
        if problems:
            return problems
        return [*_check_grid(version), *self.engines[engine["name"]]().check(version)]

    def estimate(self, version: ModelVersion) -> int:
        """The engine's estimate and the ring."""
        engine = self.engines[version.config["engine"]["name"]]()
        limits = version.config["limits"]
        ring_bytes: int = limits["slots"] * 512  # arenas become resident only with use
        return int(engine.estimate(version)) + ring_bytes

    def build(
        self,
        checkpoint: Any,
        directory: Path,
        *,
        limits: Mapping[str, Any],
        options: Mapping[str, Any],
        progress: Callable[[str, float], None],
    ) -> BuildResult:
        """Engine files of the CPU engine."""
        engine = self.engines[DEFAULT_BUILD_ENGINE]()
        result: BuildResult = engine.build(
            checkpoint, directory, limits=limits, options=options, progress=progress
        )
        return result

    def runner_command(self, version: ModelVersion, *, threads: int) -> Sequence[str]:
        """`python -m blink_persistent.runner`."""
        return [sys.executable, "-m", "blink_persistent.runner", "--threads", str(threads)]

    async def connect(self, version: ModelVersion, endpoint: Endpoint) -> Session:
        """Attach through the endpoint's transport. Raises Unavailable."""
        connect = self.transports.get(endpoint.transport)
        if connect is None:
            raise Unavailable(
                f"{version.key} is reached by the transport {endpoint.transport!r}, "
                f"and no plugin here offers it"
            )
        return await connect(version, endpoint)


def _known(file: Path, field: str, value: str, offers: Mapping[str, object]) -> Sequence[Problem]:
    if value in offers:
        return []
    near = difflib.get_close_matches(value, offers, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(sorted(offers))}"
    return [Problem(file, field, value, hint)]


def _check_grid(version: ModelVersion) -> Sequence[Problem]:
    grid = GraphGrid.from_json(load_graph_grid(version.directory))
    limits, file = version.config["limits"], version.directory / "graph_grid.json"
    problems = []
    if grid.max_rows != limits["max_rows"]:
        expected = f"its largest key must be limits.max_rows, {limits['max_rows']}"
        problems.append(Problem(file, "decode", grid.max_rows, expected))
    chunk = limits["max_prefill_tokens"]
    if grid.max_prefill_tokens != chunk:
        expected = f"its largest key must be limits.max_prefill_tokens, {chunk}"
        problems.append(Problem(file, "prefill", grid.max_prefill_tokens, expected))
    return problems
