"""Which versions are wanted, and what to do next: pure functions of what is and what should be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from blink_server.repository.harness import State


@dataclass(frozen=True, slots=True)
class Latest:
    """The `count` highest versions (at least 1)."""

    count: int = 1


@dataclass(frozen=True, slots=True)
class All:
    """Every version."""


@dataclass(frozen=True, slots=True)
class Specific:
    """The versions named, as far as they exist."""

    versions: frozenset[int]


VersionPolicy = Latest | All | Specific


class VersionKey(NamedTuple):
    """The name of one version of one model; it prints as in logs and requests: `name:3`."""

    model: str
    version: int

    def __str__(self) -> str:
        return f"{self.model}:{self.version}"


@dataclass(frozen=True, slots=True)
class Load:
    """Begin to load a version; nothing of it exists yet."""

    key: VersionKey


@dataclass(frozen=True, slots=True)
class Unload:
    """End a version: drain it first if it is READY."""

    key: VersionKey


Action = Load | Unload


def select_versions(policy: VersionPolicy, available: Iterable[int]) -> tuple[int, ...]:
    """The versions that `policy` wants of those that exist, in ascending order."""
    match policy:
        case Latest(count):
            return tuple(sorted(set(available))[-count:])
        case All():
            return tuple(sorted(set(available)))
        case Specific(versions):
            return tuple(sorted(versions.intersection(available)))


def next_actions(
    wanted: Collection[VersionKey], actual: Mapping[VersionKey, State]
) -> list[Action]:
    """What brings `actual` nearer to `wanted`: loads first, each model's newest version first.

    A READY version that is no longer wanted goes only when the wanted versions of its model have
    all settled (READY or UNAVAILABLE) and one of them is READY: new before old, and a failed load
    keeps the old one serving. It goes at once when nothing of its model is wanted any more.
    UNAVAILABLE versions are not loaded again here: their retry has its own clock. A version that
    is on its way out is loaded again only after it has left `actual`.
    """
    wanted_states: dict[str, list[State | None]] = defaultdict(list)
    for key in wanted:
        wanted_states[key.model].append(actual.get(key))
    newest_first = sorted(set(wanted) - set(actual), key=lambda key: (key.model, -key.version))
    loads = [Load(key) for key in newest_first]
    unloads = [
        Unload(key)
        for key in sorted(set(actual) - set(wanted))
        if _may_go(actual[key], wanted_states.get(key.model, []))
    ]
    return [*loads, *unloads]


def _may_go(state: State, successors: Collection[State | None]) -> bool:
    if state in (State.DRAINING, State.UNLOADING):
        return False  # already going
    if state is not State.READY or not successors:
        return True
    settled = all(successor in (State.READY, State.UNAVAILABLE) for successor in successors)
    return settled and State.READY in successors
