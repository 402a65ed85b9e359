"""The engine `scripted`: deterministic tokens from a rule, for tests of everything around it.

It has what the CPU engine lacks: small KV blocks, movable rows, adjustable step time. Its options
in config.json's "engine": those of `ScriptedOptions`, and device (by default "cpu") and scheduler
(see `place.py`), with which the same rule runs on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from blink_persistent import _native
from blink_persistent.engines import DeviceProvisioned, EngineShape, Launch, ProvisionLimits
from blink_persistent.engines.place import (
    CPU,
    PLACE_OPTIONS,
    GpuPlace,
    gpu_place,
    place_problems,
)
from blink_persistent.graph_grid import GraphGrid
from blink_server.backend import BuildResult, ModelVersion
from blink_server.errors import InvalidModel, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedOptions:
    """Options of the engine; `block_count` includes the null block."""

    vocabulary_size: int = 512
    block_size: int = 16
    block_count: int = 1024
    rows_movable: bool = True
    eos_every: int = 0  # on average, every so many tokens is end-of-sequence; 0 = never
    step_microseconds: int = 0


def read_options(version: ModelVersion) -> tuple[ScriptedOptions, list[Problem]]:
    """The version's options, or defaults and what is wrong with them."""
    others = ("name", *PLACE_OPTIONS)
    given = {key: value for key, value in version.config["engine"].items() if key not in others}
    problems = place_problems(version, default=CPU)
    known = {field.name: bool if field.type == "bool" else int for field in fields(ScriptedOptions)}
    for key, value in given.items():
        file = version.directory / "config.json"
        if key not in known:
            expected = f"use one of {', '.join((*known, *PLACE_OPTIONS))}"
            problems.append(Problem(file, f"engine.{key}", value, expected))
        elif type(value) is not known[key] or (known[key] is int and value < 0):
            kind = "true or false" if known[key] is bool else "a whole number, 0 or more"
            problems.append(Problem(file, f"engine.{key}", value, f"must be {kind}"))
    return (ScriptedOptions() if problems else ScriptedOptions(**given)), problems


def shape_of(version: ModelVersion, grid: GraphGrid, options: ScriptedOptions) -> EngineShape:
    """The numbers of the engine for a version."""
    context_length = version.config["limits"]["context_length"]
    return EngineShape(
        grid=grid,
        context_length=context_length,
        vocabulary_size=options.vocabulary_size,
        eos_token_ids=tuple(version.config["eos_token_ids"]),
        block_size=options.block_size if options.rows_movable else context_length,
        block_count=options.block_count,
        rows_movable=options.rows_movable,
        deterministic=version.config["deterministic"],
        prefill_chunk=version.config["limits"].get("prefill_chunk", 0),
    )


class ScriptedProvisioned:
    """A scripted engine in service."""

    def __init__(self, version: ModelVersion, grid: GraphGrid, options: ScriptedOptions) -> None:
        self.shape = shape_of(version, grid, options)
        eos = self.shape.eos_token_ids
        self.host = self.shape.host_engine()
        rule = _native.ScriptedRule(
            options.vocabulary_size, eos[0] if eos else -1, options.eos_every
        )
        self._engine = _native.ScriptedEngine(self.host, rule)
        self._engine.step_microseconds = options.step_microseconds

    def step(self, launch: Launch) -> None:
        """Compute the rule on the step buffers."""
        self._engine.step(launch.phase, launch.sequences, launch.tokens, launch.rows)

    def close(self) -> None:
        """Nothing is held but memory of this object."""


class ScriptedEngine:
    """Fulfils `Engine`."""

    def check(self, version: ModelVersion) -> Sequence[Problem]:
        """Unknown or ill-typed options."""
        return read_options(version)[1]

    def place(self, version: ModelVersion) -> GpuPlace | None:
        """Where "device" says."""
        return gpu_place(version.config["engine"], ("cuda.bindings",), default=CPU)

    def estimate(self, version: ModelVersion) -> int:
        """Bytes of the pretended KV memory."""
        options, _ = read_options(version)
        limits = version.config["limits"]
        entries = (
            options.block_size * options.block_count
            if options.rows_movable
            else limits["max_rows"] * limits["context_length"]
        )
        return 4 * entries

    def build(
        self,
        checkpoint: Any,
        directory: Path,
        *,
        limits: Mapping[str, Any],
        options: Mapping[str, Any],
        progress: Callable[[str, float], None],
    ) -> BuildResult:
        """There is nothing to build: always raises InvalidModel."""
        raise InvalidModel([Problem(directory, "engine.name", "scripted", "it builds no models")])

    def provision(
        self,
        version: ModelVersion,
        grid: GraphGrid,
        limits: ProvisionLimits,
        *,
        progress: Callable[[str, float], None],
    ) -> ScriptedProvisioned | DeviceProvisioned:
        """An engine over fresh step buffers; the sampler is not asked, the rule decides."""
        options, problems = read_options(version)
        if problems:
            raise InvalidModel(problems)
        if self.place(version) is None:
            return ScriptedProvisioned(version, grid, options)
        from blink_persistent.engines.scripted_gpu import DeviceScriptedVersion

        return DeviceScriptedVersion(
            shape_of(version, grid, options),
            eos_every=options.eos_every,
            step_ns=1000 * options.step_microseconds,
            exclusive=limits.exclusive,
        )
