"""What the repository wants served, as the manager takes it: complete each time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from blink_server.backend import ModelVersion
from blink_server.errors import InvalidModel, Problem
from blink_server.plugins import Plugins
from blink_server.repository.policy import VersionKey
from blink_server.repository.source import read_repositories
from blink_server.repository.validator import validate_version


@dataclass(frozen=True, slots=True)
class WantedVersion:
    """A valid version that the version policy selects; `aliases` are names for its model."""

    version: ModelVersion
    aliases: tuple[str, ...] = ()

    @property
    def key(self) -> VersionKey:
        return VersionKey(self.version.model, self.version.version)


@dataclass(frozen=True, slots=True)
class InvalidVersion:
    """A version that the policy selects but that cannot be loaded, and why."""

    key: VersionKey
    directory: Path
    reason: str


@dataclass(frozen=True, slots=True)
class WantedSet:
    """All that the repositories want; `problems` are those of models, not of versions."""

    valid: Sequence[WantedVersion]
    invalid: Sequence[InvalidVersion]
    problems: Sequence[Problem]


def read_wanted(repositories: Iterable[Path], plugins: Plugins) -> WantedSet:
    """Read and validate the repositories. Raises BlinkError for one that cannot be read."""
    valid: list[WantedVersion] = []
    invalid: list[InvalidVersion] = []
    problems: list[Problem] = []
    absolute = [path.absolute() for path in repositories]  # runners and workers read them too
    for model in read_repositories(absolute).values():
        problems += model.problems
        for number in model.wanted:
            try:
                version = validate_version(model, number, plugins)
            except InvalidModel as error:
                directory = model.versions[number]
                # Clients are told the reason too, and need not know where the repository lies.
                reason = str(error).replace(f"{directory}/", "").replace("\n", "; ")
                invalid.append(InvalidVersion(VersionKey(model.name, number), directory, reason))
            else:
                valid.append(WantedVersion(version, model.aliases))
    return WantedSet(valid, invalid, problems)
