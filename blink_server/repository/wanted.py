"""What the repository wants served, as the manager takes it: complete each time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blink_server.backend import ModelVersion
from blink_server.errors import Problem
from blink_server.repository.policy import Generation, VersionKey


@dataclass(frozen=True, slots=True)
class WantedVersion:
    """A valid version that the version policy selects; `aliases` are names for its model.

    `content` tells one state of its files from the next. `unload_first`: where memory is short,
    what serves of its model may go before it is loaded.
    """

    version: ModelVersion
    aliases: tuple[str, ...] = ()
    content: str = ""
    unload_first: bool = False

    @property
    def key(self) -> VersionKey:
        return VersionKey(self.version.model, self.version.version)

    @property
    def generation(self) -> Generation:
        return Generation(self.version.model, self.version.version, self.content)


@dataclass(frozen=True, slots=True)
class InvalidVersion:
    """A version that the policy selects but that cannot be loaded, and why."""

    key: VersionKey
    directory: Path
    reason: str

    @property
    def generation(self) -> Generation:
        return Generation(self.key.model, self.key.version, "invalid")


@dataclass(frozen=True, slots=True)
class WantedSet:
    """All that the repositories want; `problems` are those of models, not of versions.

    `held`: models of which it cannot be told what they want, and why. `aliases`: of every other
    model.
    `present`: the versions that are on disk, wanted or not. `checking`: models with a version that
    is among the invalid ones only until its check is done.
    """

    valid: Sequence[WantedVersion] = ()
    invalid: Sequence[InvalidVersion] = ()
    problems: Sequence[Problem] = ()
    held: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    present: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    checking: Collection[str] = ()
