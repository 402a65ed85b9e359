"""Messages as lines: one JSON object each, parsed strictly.

An unknown, missing or wrongly typed field is a `ProtocolError` that names it.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, ClassVar, Literal, Protocol, TypeVar, cast

from blink_server.errors import BlinkError

MAX_LINE = 4 * 1024 * 1024  # bytes; a catalog holds every version's config.json


class ProtocolError(BlinkError):
    """The other side of a control connection sent something that is not a message."""


class Message(Protocol):
    """A frozen record of plain fields; TYPE is its tag on the line."""

    TYPE: ClassVar[str]


R = TypeVar("R")
M = TypeVar("M", bound=Message)


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


def decode(line: bytes, allowed: Iterable[type[M]]) -> M:
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


def _role_matches(message_class: type[Any], plain: dict[str, Any]) -> bool:
    for field in dataclasses.fields(message_class):
        if field.name == "role":
            return bool(plain.get("role") == field.default)
    return True


@cache
def _types(record_class: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(record_class)


def _build(record_class: type[R], plain: Any, where: str) -> R:
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
        elif (field.default, field.default_factory) == (dataclasses.MISSING,) * 2:
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
