"""Which versions are wanted, and what to do next: pure functions of what is and what should be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from blink_server.repository.harness import State


@dataclass(frozen=True, slots=True)
class Latest:
    """The `count` highest versions (at least 1) that can be loaded."""

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


class Generation(NamedTuple):
    """One content of a version: what a load reads. When its files change, the next one follows."""

    model: str
    version: int
    content: str = ""

    @property
    def key(self) -> VersionKey:
        return VersionKey(self.model, self.version)

    def __str__(self) -> str:
        return f"{self.model}:{self.version}"


@dataclass(frozen=True, slots=True)
class Load:
    """Begin to load a generation; nothing of it exists yet."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Unload:
    """End a generation: drain it first if it is READY."""

    generation: Generation


Action = Load | Unload


def select_versions(
    policy: VersionPolicy, available: Iterable[int], broken: Collection[int] = ()
) -> tuple[int, ...]:
    """The versions that `policy` wants of those that exist, in ascending order.

    `broken`: versions that cannot be loaded. They are wanted all the same; of the highest ones,
    each has the next lower version serve in its place.
    """
    match policy:
        case Latest(count):
            descending = sorted(set(available), reverse=True)
            good = [index for index, each in enumerate(descending) if each not in broken]
            end = good[count - 1] + 1 if count <= len(good) else len(descending)
            return tuple(reversed(descending[:end]))
        case All():
            return tuple(sorted(set(available)))
        case Specific(versions):
            return tuple(sorted(versions.intersection(available)))


def next_actions(
    wanted: Collection[Generation],
    actual: Mapping[Generation, State],
    *,
    held: Collection[str] = (),
    proven: Collection[Generation] = (),
    starved: Collection[Generation] = (),
) -> list[Action]:
    """What brings `actual` nearer to `wanted`: loads first, each model's newest version first.

    `wanted` has at most one generation of a version. A READY generation that is no longer wanted
    goes only when what follows it serves: the wanted generation of its own version where there is
    one, else the wanted versions of its model, all settled (READY or UNAVAILABLE) and one of them
    READY. New comes before old, and a failed load keeps the old one serving. It goes at once when
    nothing of its model is wanted any more.

    `held`: models of which it is not known what they want; they keep what they have. `proven`:
    generations that have been READY, which stay like READY ones while they are started again.
    `starved`: wanted generations that get memory only when what serves now goes first.

    UNAVAILABLE generations are not loaded again here: their retry has its own clock. One that is
    on its way out is loaded again only after it has left `actual`.
    """
    successors: dict[str, dict[Generation, State | None]] = defaultdict(dict)
    for generation in wanted:
        successors[generation.model][generation] = actual.get(generation)
    newest_first = sorted(set(wanted) - set(actual), key=lambda each: (each.model, -each.version))
    loads = [Load(generation) for generation in newest_first]
    unloads = [
        Unload(generation)
        for generation in sorted(set(actual) - set(wanted))
        if generation.model not in held
        and _may_go(
            generation,
            actual[generation],
            successors.get(generation.model, {}),
            proven=generation in proven,
            starved=starved,
        )
    ]
    return [*loads, *unloads]


def _may_go(
    generation: Generation,
    state: State,
    successors: Mapping[Generation, State | None],
    *,
    proven: bool,
    starved: Collection[Generation],
) -> bool:
    if state in (State.DRAINING, State.UNLOADING):
        return False  # already going
    if not successors or not (proven or state is State.READY):
        return True
    own = {each: s for each, s in successors.items() if each.version == generation.version}
    followers = own or successors
    if any(each in starved for each in followers):
        return True
    settled = all(s in (State.READY, State.UNAVAILABLE) for s in followers.values())
    return settled and State.READY in followers.values()
