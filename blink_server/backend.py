"""The contract between the server and its backends.

Data path, in a worker process: `Backend.connect` gives a `Session`, `Session.submit` a
`TokenStream`, which yields `TokenEvent`s. Control path, in the provisioner: `Backend.check`,
`estimate`, `build` and `runner_command`; the runner's side of the control channel is described
in `blink_server.control`. The two paths share nothing but the `Endpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from blink_server.errors import Problem
from blink_server.generate_request import GenerateRequest, Grammar, SamplingParams, TokenBytes
from blink_server.scheduler_stats import SLOT_STATES, GraphLaunches, SchedulerStats, SlotTable
from blink_server.token_stream import (
    FinishReason,
    RequestTiming,
    TokenEvent,
    TokenLogprob,
    TokenStream,
    TokenUsage,
)

__all__ = [
    "SLOT_STATES",
    "Backend",
    "BuildResult",
    "Endpoint",
    "EngineBackend",
    "FinishReason",
    "GenerateRequest",
    "GpuBackend",
    "Grammar",
    "GraphLaunches",
    "ModelVersion",
    "RequestTiming",
    "SamplingParams",
    "SchedulerStats",
    "Session",
    "SessionLimits",
    "SlotTable",
    "TokenBytes",
    "TokenEvent",
    "TokenLogprob",
    "TokenStream",
    "TokenUsage",
]


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one request may ask of a version; checked before tokens become a slot."""

    context_length: int  # prompt + generated tokens
    vocabulary_size: int
    eos_token_ids: tuple[int, ...]
    max_logprobs: int = 20


class Session(Protocol):
    """A worker's connection to one loaded version. All calls on the worker's event loop."""

    limits: SessionLimits

    async def submit(self, request: GenerateRequest) -> TokenStream:
        """Hand a request over; returns when it is in its slot.

        Raises `Overloaded` when no slot or arena space is free, `Unavailable` when the endpoint
        is closed (retry on the version's next endpoint), `InvalidRequest` when a limit is passed,
        also by the tables that its grammar needs.
        """
        ...

    @property
    def in_flight(self) -> int:
        """Requests submitted whose slot has not been given back."""
        ...

    def configure(self, config: Mapping[str, Any]) -> None:
        """Apply what of the version's config.json may change in service: `limits.max_queue`.

        Called after `connect` and whenever the file has changed; takes effect with the next
        submit.
        """
        ...

    def stats(self) -> SchedulerStats | None:
        """For metrics; None where the backend has no scheduler of its own."""
        ...

    def slots(self) -> SlotTable | None:
        """For metrics and the console; None where the backend has no ring."""
        ...

    def on_closed(self, callback: Callable[[str], None]) -> None:
        """Call `callback(reason)` once when the other side is gone."""
        ...

    async def close(self) -> None:
        """Cancel what is in flight, give slots back, release all resources."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a READY version can be reached: a transport's name and what that transport needs.

    `address` is plain JSON, passed through the catalog unread: for `shm`, {"socket": path}.
    """

    transport: str
    address: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One complete version directory whose config.json has passed its schema.

    `config` is the parsed config.json with the schema's defaults filled in.
    """

    model: str
    version: int
    directory: Path
    config: Mapping[str, Any]

    @property
    def key(self) -> str:
        return f"{self.model}:{self.version}"


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What `Backend.build` wrote: file names relative to the directory, and config.json fragments.

    `notes` are lines for the user who imports: how weights are held, and what that costs.
    """

    files: Sequence[str]
    config: Mapping[str, Any]  # merged into config.json by the importer ("engine", "limits", ...)
    graph_grid: Mapping[str, Any]  # graph_grid.json
    notes: Sequence[str] = ()


@runtime_checkable
class Backend(Protocol):
    """A way to load versions and serve them; found by `config.json`'s "backend" field.

    All methods but `connect` run in the provisioner (or the command line tool) and must not
    import or map a model's weights, except `build`.
    """

    name: str

    def check(self, version: ModelVersion) -> Sequence[Problem]:
        """Problems beyond the schema: missing or unreadable files, impossible limits."""
        ...

    def estimate(self, version: ModelVersion) -> int:
        """Bytes of memory the loaded version will need, from its files and limits alone."""
        ...

    def build(
        self,
        checkpoint: Any,
        directory: Path,
        *,
        limits: Mapping[str, int],
        options: Mapping[str, Any],
        progress: Callable[[str, float], None],
    ) -> BuildResult:
        """Write the engine files for a checkpoint (`blink_server.importers.Checkpoint`).

        `limits` holds what the user asked for ("max_rows", "context_length"), a subset of
        config.json's limits; the backend chooses the others and returns them all in
        `BuildResult.config["limits"]`. `options` holds what they asked of the engine ("compute",
        and "name" of an `EngineBackend`): the backend refuses what it does not know, and records
        what it took in `BuildResult.config["engine"]`. `directory` is private to the call until
        it returns; `progress(stage, fraction)` may be called from any thread. Raises
        `InvalidModel` for a checkpoint, limits or options it cannot serve.
        """
        ...

    def runner_command(self, version: ModelVersion, *, threads: int) -> Sequence[str]:
        """The argv of the process that will hold the loaded version.

        The provisioner starts it with the environment of `blink_server.control` and watches it;
        what every such process does is `blink_server.runner_main.run_runner`.
        `threads` is its share of the machine's CPU threads. An empty one says that the workers
        serve the version themselves, each from its `connect` on: see `blink_server.worker_backend`.
        """
        ...

    async def connect(self, version: ModelVersion, endpoint: Endpoint) -> Session:
        """Attach a worker to a READY version. Raises `Unavailable`."""
        ...


@runtime_checkable
class EngineBackend(Backend, Protocol):
    """A backend that builds for one of several engines: `import --engine` names it."""

    engines: Mapping[str, Any]

    def import_options(self, engine: str | None) -> Collection[str]:
        """Which of "quantize" and "compute" an import for an engine takes; None: the default one.

        An engine that does not take "quantize" is given float matrices as they are.
        """
        ...


@runtime_checkable
class GpuBackend(Backend, Protocol):
    """A backend whose versions may take a GPU's memory too; `estimate` is then the host's part."""

    def estimate_gpu(self, version: ModelVersion) -> int:
        """Bytes of a GPU's memory without which the version is not loaded; 0 where none is used."""
        ...


@runtime_checkable
class SourceBackend(Backend, Protocol):
    """A backend that gives the weights of its versions, so that others are built of them."""

    def checkpoint(self, version: ModelVersion) -> Any:
        """A version as a `blink_server.importers.checkpoint.Checkpoint`, which `build` takes.

        Raises `InvalidModel` where its engine does not keep weights as they came.
        """
        ...
