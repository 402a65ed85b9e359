"""The index of a repository: a row a version, and rows as columns, which thousands travel as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from blink_server.message_codec import ProtocolError


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One version in the index; version 0 stands for a model that has none.

    `since`: seconds since 1970, 0 where it was never loaded. `requests`: in flight, over all
    workers, where they were counted. `retry_at`: when its load is tried again, seconds since 1970;
    0 where it is not.
    """

    model: str
    version: int
    state: str
    reason: str = ""
    epoch: int = 0
    since: float = 0.0
    load_seconds: float = 0.0
    requests: int = 0
    retry_at: float = 0.0


_FIELDS = tuple(field.name for field in fields(ModelRow))


def to_columns(rows: Sequence[ModelRow]) -> dict[str, list[Any]]:
    """A list for each field."""
    return {name: [getattr(row, name) for row in rows] for name in _FIELDS}


def from_columns(columns: Mapping[str, Any]) -> list[ModelRow]:
    """The rows again. Raises ProtocolError for what are no columns of them."""
    if not columns:
        return []
    try:
        return [ModelRow(*row) for row in zip(*(columns[n] for n in _FIELDS), strict=True)]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"an index that cannot be read: {error!r}") from None
