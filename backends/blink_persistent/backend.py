"""The backend `blink_persistent`: ring, persistent scheduler and an engine in a runner process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from blink_persistent.engines import TOKEN_GRANULARITY, Engine
from blink_persistent.engines.place import GpuPlace
from blink_persistent.gpu.presence import missing_for_gpu
from blink_persistent.graph_grid import GraphGrid
from blink_persistent.graph_lookup import mixed_lookup
from blink_persistent.ring import LAYOUT_HASH
from blink_server.backend import BuildResult, Endpoint, ModelVersion, Session
from blink_server.config import load_graph_grid
from blink_server.errors import InvalidModel, Problem, Unavailable
from blink_server.hookspecs import Connect, Factory, SamplerFactory
from blink_server.suggestion import did_you_mean

DEFAULT_BUILD_ENGINE = "onnx_cpu"
IMPORT_OPTIONS = ("quantize", "compute")  # of engines that do not say
_RING_BYTES_A_SLOT = 512  # arenas become resident only with use
_GPU_HOST_BYTES = 2 << 30  # of the processes that serve a version on a GPU
_HUGE_PAGES = "glibc.malloc.hugetlb=1"


class PersistentBackend:
    """Fulfils `Backend`; engines, samplers and transports are what plugins registered, by name."""

    name = "blink_persistent"

    def __init__(
        self,
        engines: Mapping[str, Factory],
        samplers: Mapping[str, SamplerFactory],
        transports: Mapping[str, Connect],
    ) -> None:
        self.engines = engines
        self.samplers = samplers
        self.transports = transports

    def check(self, version: ModelVersion) -> Sequence[Problem]:
        """Unknown engine or sampler, a grid that does not fit the limits, the engine's problems,
        and a GPU that is needed and not there."""
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
        made: Engine = self.engines[engine["name"]]()
        problems = [*_check_grid(version), *made.check(version)]
        return problems or _check_place(file, engine["name"], made.place(version))

    def estimate(self, version: ModelVersion) -> int:
        """The engine's estimate and the ring; on a GPU, whose memory its runner knows, the host's
        part."""
        engine: Engine = self.engines[version.config["engine"]["name"]]()
        on_gpu = engine.place(version) is not None
        ring_bytes: int = version.config["limits"]["slots"] * _RING_BYTES_A_SLOT
        return ring_bytes + (_GPU_HOST_BYTES if on_gpu else engine.estimate(version))

    def estimate_gpu(self, version: ModelVersion) -> int:
        """What must be free for a load, where the engine is on a GPU."""
        from blink_persistent.serving import gpu_bytes

        engine: Engine = self.engines[version.config["engine"]["name"]]()
        return gpu_bytes(engine, version) if engine.place(version) is not None else 0

    def build(
        self,
        checkpoint: Any,
        directory: Path,
        *,
        limits: Mapping[str, Any],
        options: Mapping[str, Any],
        progress: Callable[[str, float], None],
    ) -> BuildResult:
        """Files of the engine that `options` names, by default the CPU's."""
        of_engine = {option: value for option, value in options.items() if option != "name"}
        engine = self._engine(options.get("name"))
        return engine.build(
            checkpoint, directory, limits=limits, options=of_engine, progress=progress
        )

    def import_options(self, engine: str | None) -> Collection[str]:
        """Both, unless the engine's `import_options` say less."""
        return getattr(self._engine(engine), "import_options", IMPORT_OPTIONS)

    def checkpoint(self, version: ModelVersion) -> Any:
        """What the engine's `checkpoint` gives, if it has such."""
        file, name = version.directory / "config.json", version.config["engine"]["name"]
        if problems := _known(file, "engine.name", name, self.engines):
            raise InvalidModel(list(problems))
        opened: Callable[[ModelVersion], Any] | None
        opened = getattr(self._engine(name), "checkpoint", None)
        if opened is None:
            expected = "keeps no weights that another version can be built from"
            raise InvalidModel([Problem(file, "engine.name", name, expected)])
        return opened(version)

    def _engine(self, name: str | None) -> Engine:
        engine: Engine = self.engines[name or DEFAULT_BUILD_ENGINE]()
        return engine

    def runner_command(self, version: ModelVersion, *, threads: int) -> Sequence[str]:
        """A runner of its own on the CPU; on a GPU a link to the one that owns the GPU."""
        engine: Engine = self.engines[version.config["engine"]["name"]]()
        place = engine.place(version)
        python, options = [sys.executable, "-m"], ["--threads", str(threads)]
        if place is not None:
            link = ["blink_persistent.gpu_runner.link", "--device", str(place.device)]
            return [*python, *link, *options]
        return [*_with_huge_pages(), *python, "blink_persistent.runner", *options]

    @property
    def ring_layout(self) -> str:
        """See `blink_server.remote.gates.RemoteBackend`."""
        return f"{LAYOUT_HASH:016x}"

    def agent_command(self, runner: str, serve: str) -> list[str]:
        """`python -m blink_persistent.agent`; fulfils `blink_server.remote.gates.RemoteBackend`."""
        return [
            *(sys.executable, "-m", "blink_persistent.agent"),
            *("--runner", runner, "--serve", serve),
        ]

    async def connect(self, version: ModelVersion, endpoint: Endpoint) -> Session:
        """Attach through the endpoint's transport. Raises Unavailable."""
        connect = self.transports.get(endpoint.transport)
        if connect is None:
            raise Unavailable(
                f"{version.key} is reached by the transport {endpoint.transport!r}, "
                f"and no plugin here offers it"
            )
        return await connect(version, endpoint)


def _with_huge_pages() -> Sequence[str]:
    """What a command is begun with to have its memory in huge pages, where the kernel lends them.

    A step reads all weights once. In small pages that takes up to a third longer, and differs from
    one start to the next with where the pages happen to lie. glibc reads the setting before
    anything else runs; its user's own ones come later in the list, and prevail.
    """
    tunables = filter(None, (_HUGE_PAGES, os.environ.get("GLIBC_TUNABLES")))
    return ["env", f"GLIBC_TUNABLES={':'.join(tunables)}"]


def _known(file: Path, field: str, value: str, offers: Mapping[str, object]) -> Sequence[Problem]:
    if value in offers:
        return []
    hint = did_you_mean(value, offers) or f"use one of {', '.join(sorted(offers))}"
    return [Problem(file, field, value, hint)]


def _check_place(file: Path, engine: str, place: GpuPlace | None) -> Sequence[Problem]:
    if place is None:
        return []
    missing = missing_for_gpu(place.device, place.modules, place.extra)
    return [Problem(file, "engine.name", engine, missing, of_machine=True)] if missing else []


def _check_grid(version: ModelVersion) -> Sequence[Problem]:
    grid = GraphGrid.from_json(load_graph_grid(version.directory))
    limits, file = version.config["limits"], version.directory / "graph_grid.json"
    problems = []
    if grid.max_rows != limits["max_rows"]:
        expected = f"its largest key must be limits.max_rows, {limits['max_rows']}"
        problems.append(Problem(file, "decode", grid.max_rows, expected))
    most = limits["max_prefill_tokens"]
    if grid.max_prefill_tokens != most:
        expected = f"its largest key must be limits.max_prefill_tokens, {most}"
        problems.append(Problem(file, "prefill", grid.max_prefill_tokens, expected))
    try:
        mixed_lookup(grid, TOKEN_GRANULARITY)
    except ValueError as error:
        problems.append(Problem(file, "mixed", None, str(error)))
    chunk = limits.get("prefill_chunk", most)
    if chunk > most:
        expected = f"must be limits.max_prefill_tokens, {most}, or less"
        config = version.directory / "config.json"
        problems.append(Problem(config, "limits.prefill_chunk", chunk, expected))
    return problems
