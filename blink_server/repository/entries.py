"""The catalog's entries: what workers are told of each version, and of models that have none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from blink_server.messages import CatalogEntry
from blink_server.repository.harness import State
from blink_server.repository.policy import VersionKey
from blink_server.repository.supervisor import Supervisor
from blink_server.repository.wanted import InvalidVersion


def catalog_entries(
    supervisors: Iterable[Supervisor],
    invalid: Iterable[InvalidVersion],
    held: Mapping[str, str],
) -> list[CatalogEntry]:
    """By model, version and epoch; version 0 says why a model that is `held` has no other."""
    entries = [supervisor.entry() for supervisor in supervisors]
    entries += [_without_runner(each.key, each.reason, each.directory) for each in invalid]
    known = {entry.model for entry in entries}
    entries += [
        _without_runner(VersionKey(model, 0), reason)
        for model, reason in held.items()
        if model not in known
    ]
    return sorted(entries, key=lambda entry: (entry.model, entry.version, entry.epoch))


def _without_runner(key: VersionKey, reason: str, directory: Path | str = "") -> CatalogEntry:
    return CatalogEntry(
        model=key.model,
        version=key.version,
        epoch=0,
        state=str(State.UNAVAILABLE),
        reason=reason,
        directory=str(directory),
        config={},
        aliases=(),
        backend="",
        endpoint=None,
    )
