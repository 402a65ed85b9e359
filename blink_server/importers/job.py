"""One import, whatever it reads from: its options, its progress, and what it says at the end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from blink_server.backend import Backend, EngineBackend
from blink_server.importers.checkpoint import Checkpoint
from blink_server.importers.failure import ModelImportError
from blink_server.importers.quantize import Bits
from blink_server.importers.quantizing import QuantizingCheckpoint
from blink_server.importers.report import print_result, stages_shown
from blink_server.importers.version_writer import Destination, write_version
from blink_server.plugin_choice import PluginChoice, plugin_options
from blink_server.plugins import Plugins, load_plugins
from blink_server.schema_problems import nearest
from blink_server.schemas import limit_bounds

QUANTIZATIONS: Mapping[str, Bits | None] = {"int4": 4, "int8": 8, "none": None}
COMPUTES = ("int8", "fp32")
_ENGINE_CHOICES = ("quantize", "compute")  # that not every engine takes

_OPTIONS = (
    click.option(
        "--version",
        type=click.IntRange(1, 10**18 - 1),
        help="Version number. [default: one above the highest]",
    ),
    click.option(
        "--model-repository",
        "repository",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("model_repository"),
        show_default=True,
        help="Model repository directory; created if missing.",
    ),
    click.option(
        "--quantize",
        type=click.Choice(list(QUANTIZATIONS)),
        show_default="int8; none with --compute fp32 and for engines that hold floats",
        help="Type for float matrices; matrices already quantized in the file are kept.",
    ),
    click.option(
        "--compute",
        type=click.Choice(COMPUTES),
        help="Arithmetic of the products: int8 is fast, fp32 exact. [default: the engine's]",
    ),
    click.option(
        "--max-rows",
        type=click.IntRange(*limit_bounds("max_rows")),
        help="Maximum number of requests decoded together. [default: 8 for onnx_cpu, 64 for cuda]",
    ),
    click.option(
        "--context-length",
        type=click.IntRange(*limit_bounds("context_length")),
        help="Maximum tokens of prompt and answer together, up to the model's own limit. "
        "[default: 2048 for onnx_cpu, 8192 for cuda, or the model's limit if lower]",
    ),
    click.option(
        "--backend",
        "backend_name",
        default="blink_persistent",
        show_default=True,
        help="Backend plugin that builds and serves the version.",
    ),
    click.option(
        "--engine",
        help="The backend's engine. For blink_persistent: onnx_cpu, the default, or cuda, for an "
        "NVIDIA GPU, which the import itself does not need.",
    ),
)


def import_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of every import: the fields of `ImportJob` but `name`."""
    command = plugin_options(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, kw_only=True)
class ImportJob:
    """What the user asked for; `check` tells what is wrong with it before anything is read."""

    name: str
    version: int | None
    repository: Path
    quantize: str | None
    compute: str | None
    max_rows: int | None
    context_length: int | None
    backend_name: str
    engine: str | None
    plugin_choice: PluginChoice

    @property
    def bits(self) -> Bits | None:
        """Of what float matrices become: floats, if they are computed with as such."""
        floats = self.compute == "fp32" or "quantize" not in self._choices()
        return QUANTIZATIONS[self.quantize or ("none" if floats else "int8")]

    @functools.cached_property
    def plugins(self) -> Plugins:
        """Those of the choice, loaded when they are first asked for. Raises PluginError."""
        return load_plugins(choice=self.plugin_choice)

    @property
    def destination(self) -> Destination:
        return Destination(self.repository, self.name, self.version)

    @property
    def engine_options(self) -> dict[str, str]:
        """What is asked of the engine, its name included."""
        asked = {"name": self.engine, "compute": self.compute}
        return {option: value for option, value in asked.items() if value is not None}

    def check(self) -> None:
        """Raise `ModelImportError` for a bad name, an existing version, an unknown backend or
        engine, an option that the engine does not take."""
        self.destination.check()
        backends = self.plugins.backends
        if self.backend_name not in backends:
            known = nearest(self.backend_name, backends)
            raise ModelImportError(f"no plugin offers the backend {self.backend_name!r}; {known}")
        if self.engine is not None:
            check_engine(backends[self.backend_name], self.engine)
        refused = [name for name in _ENGINE_CHOICES if name not in self._choices()]
        for name in refused:
            if (value := getattr(self, name)) is not None:
                whose = f"engine {self.engine!r}" if self.engine else self.backend_name
                raise ModelImportError(f"--{name} {value} is nothing that the {whose} takes")

    def _choices(self) -> Collection[str]:
        """Of `_ENGINE_CHOICES`, those that may be made."""
        backend = self.plugins.backends[self.backend_name]
        if not isinstance(backend, EngineBackend):
            return _ENGINE_CHOICES
        return backend.import_options(self.engine)

    def run(self, open_checkpoint: Callable[[Callable[[str, float], None]], Checkpoint]) -> None:
        """Write the version of the checkpoint that `open_checkpoint(progress)` gives.

        It appears in the repository whole or, if anything fails, not at all. Says on standard
        output what was written, and how exactly.
        """
        self.check()
        backend = self.plugins.backends[self.backend_name]
        asked = {"max_rows": self.max_rows, "context_length": self.context_length}
        limits = {limit: value for limit, value in asked.items() if value is not None}
        with stages_shown(Console(stderr=True)) as stages:
            checkpoint = open_checkpoint(stages.report)
            quantizing = None if self.bits is None else QuantizingCheckpoint(checkpoint, self.bits)
            written = write_version(
                quantizing or checkpoint,
                backend,
                self.destination,
                limits=limits,
                options=self.engine_options,
                progress=stages.report,
            )
        summary = quantizing.summary() if quantizing else []
        print_result(written, summary, self.repository)


def check_engine(backend: Backend, engine: str) -> None:
    """Raise `ModelImportError` where the backend has no engine of that name."""
    if not isinstance(backend, EngineBackend):
        raise ModelImportError(f"the backend {backend.name!r} has no engines to choose")
    if engine not in backend.engines:
        known = nearest(engine, backend.engines)
        raise ModelImportError(f"no plugin offers the engine {engine!r}; {known}")
