"""The messages of the control channel: small frozen records, one JSON object a line.

Runner to provisioner: `RegisterRunner`, then `Progress` any number of times, then `Ready` or
`Failed`. Worker to provisioner: `RegisterWorker`, then `Connected` and `Released`. Provisioner to runner: `Drain`,
`Stop`. Provisioner to worker: `CatalogUpdate`, always complete.

Parsing is strict: an unknown, missing or wrongly typed field is a `ProtocolError` that names it.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar, cast

from blink_server.backend import Endpoint
from blink_server.errors import BlinkError

MAX_LINE = 4 * 1024 * 1024  # bytes; a catalog holds every version's config.json


class ProtocolError(BlinkError):
    """The other side of a control connection sent something that is not a message."""


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
    """The version cannot be loaded, and why, in words for the user."""

    TYPE: ClassVar[str] = "failed"
    reason: str


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
    """One wanted version as workers see it; `endpoint` is there only while it can be used."""

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

    @property
    def key(self) -> EndpointKey:
        return EndpointKey(self.model, self.version, self.epoch)


@dataclass(frozen=True, slots=True)
class CatalogUpdate:
    """Every version in one message; `server` is STARTING, READY or DRAINING."""

    TYPE: ClassVar[str] = "catalog"
    revision: int
    server: Literal["STARTING", "READY", "DRAINING"]
    models: tuple[CatalogEntry, ...]


RunnerMessage = RegisterRunner | Progress | Ready | Failed
RunnerCommand = Drain | Stop
WorkerMessage = RegisterWorker | Connected | Released
Message = RunnerMessage | RunnerCommand | WorkerMessage | CatalogUpdate

FROM_RUNNER: tuple[type[Message], ...] = (RegisterRunner, Progress, Ready, Failed)
TO_RUNNER: tuple[type[Message], ...] = (Drain, Stop)
FROM_WORKER: tuple[type[Message], ...] = (RegisterWorker, Connected, Released)
TO_WORKER: tuple[type[Message], ...] = (CatalogUpdate,)
REGISTRATIONS: tuple[type[Message], ...] = (RegisterRunner, RegisterWorker)

M = TypeVar("M")


def encode(message: Message) -> bytes:
    """One line of JSON with its newline. Raises ProtocolError when it is longer than MAX_LINE."""
    plain = {"type": message.TYPE, **_plain(message)}
    line = json.dumps(
        plain, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    encoded = line.encode() + b"\n"
    if len(encoded) > MAX_LINE:
        raise ProtocolError(f"message {message.TYPE!r} has {len(encoded)} bytes, over {MAX_LINE}")
    return encoded


def decode(line: bytes, allowed: Iterable[type[Message]]) -> Message:
    """The message of one line, which must be one of the `allowed` classes.

    Raises ProtocolError naming the message, the field and the value.
    """
    try:
        plain = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a line of JSON: {_shorten(line)} ({error})") from None
    if not isinstance(plain, dict):
        raise ProtocolError(f"not a JSON object: {_shorten(line)}")
    tag = plain.pop("type", None)
    for message_class in allowed:
        if tag == message_class.TYPE and _role_matches(message_class, plain):
            return _build(message_class, plain, f"message {tag!r}")
    role = f" of role {plain['role']!r}" if "role" in plain else ""
    raise ProtocolError(f"unexpected message {tag!r}{role}")


def _plain(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _role_matches(message_class: type[Message], plain: dict[str, Any]) -> bool:
    for field in dataclasses.fields(message_class):
        if field.name == "role":
            return bool(plain.get("role") == field.default)
    return True


@cache
def _types(record_class: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(record_class)


def _build(record_class: type[M], plain: Any, where: str) -> M:
    if not isinstance(plain, dict):
        raise ProtocolError(f"{where}: expected an object, found {plain!r}")
    fields = {field.name: field for field in dataclasses.fields(cast(Any, record_class))}
    if unknown := sorted(plain.keys() - fields.keys()):
        raise ProtocolError(f"{where}: unknown field {unknown[0]!r}")
    values = {}
    for name, field in fields.items():
        if name in plain:
            values[name] = _convert(
                _types(cast(Any, record_class))[name], plain[name], f"{where}: {name}"
            )
        elif field.default is dataclasses.MISSING:
            raise ProtocolError(f"{where}: field {name!r} is missing")
    return record_class(**values)


def _convert(wanted: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        return _build(wanted, value, where)
    if origin is Literal:
        if value in arguments:
            return value
    elif origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        (inner,) = (a for a in arguments if a is not type(None))
        return _convert(inner, value, where)
    elif origin is tuple:
        if isinstance(value, list):
            return tuple(_convert(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    elif origin is not None:
        if isinstance(value, dict):
            return value
    elif wanted is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    elif isinstance(value, wanted) and not (isinstance(value, bool) and wanted is int):
        return value
    expected = getattr(wanted, "__name__", str(wanted))
    raise ProtocolError(f"{where}: expected {expected}, found {value!r}")


def _shorten(line: bytes) -> str:
    return repr(line[:80]) + ("..." if len(line) > 80 else "")
