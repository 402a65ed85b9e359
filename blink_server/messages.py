"""The messages of the control channel, as small frozen records.

Runner to provisioner: `RegisterRunner`, then `Progress` any number of times, then `Ready` or
`Failed`. Worker to provisioner: `RegisterWorker`, then `Connected` and `Released`, and `Usage` for
each `CountUsage`. Provisioner to runner: `Drain`, `Stop`. Provisioner to worker: `CatalogUpdate`,
always complete. Client to provisioner: `RegisterClient`, then `Ask`, each with its `Answer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from blink_server.backend import Endpoint


@dataclass(frozen=True, slots=True)
class EndpointKey:
    """One start of one version's runner; a version's next start has a larger epoch."""

    model: str
    version: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.model}:{self.version} epoch {self.epoch}"


@dataclass(frozen=True, slots=True)
class RegisterRunner:
    """A runner's first line, also after it has connected again."""

    TYPE: ClassVar[str] = "register"
    model: str
    version: int
    epoch: int
    pid: int
    role: Literal["runner"] = "runner"


@dataclass(frozen=True, slots=True)
class RegisterWorker:
    """A worker's first line; `holds` are the endpoints that it is connected to already."""

    TYPE: ClassVar[str] = "register"
    pid: int
    holds: tuple[EndpointKey, ...] = ()
    role: Literal["worker"] = "worker"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a load is: `fraction` of `stage`, 0 to 1."""

    TYPE: ClassVar[str] = "progress"
    stage: str
    fraction: float


@dataclass(frozen=True, slots=True)
class Ready:
    """The version serves at `endpoint`; `memory_bytes` is what the runner holds for it."""

    TYPE: ClassVar[str] = "ready"
    endpoint: Endpoint
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The version cannot be loaded, and why, in words for the user.

    `memory`: for lack of memory, which others may have.
    """

    TYPE: ClassVar[str] = "failed"
    reason: str
    memory: bool = False


@dataclass(frozen=True, slots=True)
class Drain:
    """Accept nothing new, finish what is in flight within `deadline_seconds`, exit 0."""

    TYPE: ClassVar[str] = "drain"
    deadline_seconds: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Exit now, ending what is in flight with an error."""

    TYPE: ClassVar[str] = "stop"


@dataclass(frozen=True, slots=True)
class Connected:
    """This worker can give requests to the endpoint now."""

    TYPE: ClassVar[str] = "connected"
    model: str
    version: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Released:
    """No request of this worker holds the retired endpoint any more."""

    TYPE: ClassVar[str] = "released"
    model: str
    version: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One generation of a version as workers see it.

    `endpoint` is there only while it can be used. `awaited`: what served before has made way for
    it, and requests had better wait. `load_seconds`: of the last load that succeeded. `files`:
    for frontends on other machines, the SHA-256 of each file that text needs.
    """

    model: str
    version: int
    epoch: int
    state: str
    reason: str
    directory: str
    config: Mapping[str, Any]
    aliases: tuple[str, ...]
    backend: str
    endpoint: Endpoint | None = None
    awaited: bool = False
    load_seconds: float = 0.0
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> EndpointKey:
        return EndpointKey(self.model, self.version, self.epoch)


@dataclass(frozen=True, slots=True)
class CatalogUpdate:
    """Every version in one message; `server` is STARTING, READY or DRAINING.

    `ending`: the time of the requests in flight is over as well. `log_level`: what the workers are
    to log from now on, if that was changed since they were started.
    """

    TYPE: ClassVar[str] = "catalog"
    revision: int
    server: Literal["STARTING", "READY", "DRAINING"]
    models: tuple[CatalogEntry, ...]
    ending: bool = False
    log_level: str = ""


@dataclass(frozen=True, slots=True)
class CountUsage:
    """Say, with this number, how many requests hold which endpoint."""

    TYPE: ClassVar[str] = "count_usage"
    id: int


@dataclass(frozen=True, slots=True)
class EndpointUsage:
    """How many requests of a worker hold an endpoint."""

    endpoint: EndpointKey
    requests: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What `CountUsage` asked for."""

    TYPE: ClassVar[str] = "usage"
    id: int
    endpoints: tuple[EndpointUsage, ...]


@dataclass(frozen=True, slots=True)
class RegisterClient:
    """The first line of whoever has questions."""

    TYPE: ClassVar[str] = "register"
    pid: int
    role: Literal["client"] = "client"


@dataclass(frozen=True, slots=True)
class Ask:
    """A question; `config` and `force` belong to load, `usage` (count requests) to index.

    `level`, one of `blink_server.logs.LEVELS`, belongs to log_level.
    """

    TYPE: ClassVar[str] = "ask"
    id: int
    action: Literal["index", "load", "unload", "log_level"]
    model: str = ""
    config: Mapping[str, Any] | None = None
    force: bool = False
    usage: bool = False
    level: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """To the `Ask` of the same id: done, not allowed, no such model, or failed and why.

    `rows`: an index, as the columns of `blink_server.model_rows`.
    """

    TYPE: ClassVar[str] = "answer"
    id: int
    outcome: Literal["done", "refused", "unknown", "failed"] = "done"
    error: str = ""
    rows: Mapping[str, Any] = field(default_factory=dict)


RunnerMessage = RegisterRunner | Progress | Ready | Failed
RunnerCommand = Drain | Stop
WorkerMessage = RegisterWorker | Connected | Released | Usage
ClientMessage = RegisterClient | Ask | Answer
Message = RunnerMessage | RunnerCommand | WorkerMessage | CatalogUpdate | CountUsage | ClientMessage

FROM_RUNNER: tuple[type[Message], ...] = (RegisterRunner, Progress, Ready, Failed)
TO_RUNNER: tuple[type[Message], ...] = (Drain, Stop)
FROM_WORKER: tuple[type[Message], ...] = (RegisterWorker, Connected, Released, Usage)
TO_WORKER: tuple[type[Message], ...] = (CatalogUpdate, CountUsage)
FROM_CLIENT: tuple[type[Message], ...] = (RegisterClient, Ask)
TO_CLIENT: tuple[type[Message], ...] = (Answer,)
REGISTRATIONS: tuple[type[Message], ...] = (RegisterRunner, RegisterWorker, RegisterClient)
