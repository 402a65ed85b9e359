"""States the whole wanted set from disk, each time it is asked: models, versions, what is wrong."""

from __future__ import annotations

import contextlib
import errno
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from blink_server.config import MODEL_FILE, ModelSettings, load_model_settings
from blink_server.errors import BlinkError, InvalidModel, Problem
from blink_server.repository.names import (
    MODEL_NAME_RULE,
    VERSION_RULE,
    is_ignored,
    is_model_name,
    parse_version,
)
from blink_server.repository.policy import Specific, VersionKey, select_versions


@dataclass(frozen=True, slots=True)
class SourceModel:
    """One model as it lies on disk.

    `versions` is every version directory, `wanted` those that the version policy selects: none
    where the model as a whole cannot be served. `problems` are the model's own, not its versions'.
    `aliases` are those that no other model claims. `readable` is False where it cannot be told
    what the model wants: what serves of it had better go on.
    """

    name: str
    directory: Path
    versions: Mapping[int, Path] = field(default_factory=dict)
    settings: ModelSettings = field(default_factory=ModelSettings)
    wanted: tuple[int, ...] = ()
    aliases: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    readable: bool = True


def read_repositories(
    repositories: Iterable[Path], *, visible: Callable[[Path], bool] = lambda _: True
) -> dict[str, SourceModel]:
    """Every model of every repository, by name, in order of names.

    `visible(directory)` says of each version directory whether it is to be seen. A model that
    cannot be served is there with its problems and wants no version; it never keeps
    another from being served. Raises BlinkError, naming it, for a repository that cannot be read.
    """
    found: dict[str, list[SourceModel]] = defaultdict(list)
    for repository in {path.resolve(): path for path in repositories}.values():
        for directory in _model_directories(repository):
            found[directory.name].append(_read_model(directory, visible))
    models = {name: _one_of(found[name]) for name in sorted(found)}
    return _without_contested_aliases(models)


def wanted_versions(models: Mapping[str, SourceModel]) -> list[VersionKey]:
    """The wanted versions of all models, in order."""
    return [
        VersionKey(model.name, version) for model in models.values() for version in model.wanted
    ]


def _model_directories(repository: Path) -> list[Path]:
    try:
        entries = sorted(repository.iterdir())
    except OSError as error:
        raise BlinkError(f"model repository {repository}: {error.strerror}") from None
    return [
        entry
        for entry in entries
        if not is_ignored(entry.name) and (_may_be_directory(entry) or _missing_target(entry))
    ]


def _may_be_directory(entry: Path) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # behind a link into a directory that may not be entered
        return True


def _missing_target(entry: Path) -> str | None:
    """Where a link leads, if nothing is there; None for any other link and for what is none."""
    try:
        entry.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            with contextlib.suppress(OSError):  # it is gone by now
                return str(entry.readlink())
    return None


def _leads_nowhere(directory: Path, version: str, target: str) -> Problem:
    return Problem(directory, version, None, f"is a link to {target!r}, where nothing is")


def _read_model(directory: Path, visible: Callable[[Path], bool]) -> SourceModel:
    model = SourceModel(directory.name, directory)
    if (target := _missing_target(directory)) is not None:
        return replace(model, problems=(_leads_nowhere(directory, "", target),))
    if not is_model_name(directory.name):
        expected = f"is no name for a model; a name has {MODEL_NAME_RULE}"
        return replace(model, problems=(Problem(directory, "", None, expected),))
    try:
        entries, broken = _entries(directory)
        settings = load_model_settings(directory)
    except InvalidModel as error:
        return replace(model, problems=tuple(error.problems), readable=False)
    versions = _versions(entries)
    problems = [_leads_nowhere(directory, link, target) for link, target in broken.items()]
    if not versions:
        problems = problems or [_no_version(directory, entries)]
        return replace(model, settings=settings, problems=tuple(problems))
    versions = {number: path for number, path in versions.items() if visible(path)}
    return replace(
        model,
        versions=versions,
        settings=settings,
        wanted=select_versions(settings.version_policy, versions),
        aliases=settings.aliases,
        problems=(*problems, *_policy_problems(directory, settings, versions)),
    )


def _entries(directory: Path) -> tuple[list[Path], Mapping[str, str]]:
    """The directories in a model's; and the links to nothing that would be versions, to where."""
    try:
        entries = sorted(directory.iterdir())
        links = {e.name: _missing_target(e) for e in entries if parse_version(e.name) is not None}
        broken = {name: target for name, target in links.items() if target is not None}
        return [entry for entry in entries if entry.is_dir()], broken
    except OSError as error:
        problem = Problem(directory, "", None, f"cannot be read: {error.strerror}")
        raise InvalidModel([problem]) from None


def _versions(entries: Sequence[Path]) -> dict[int, Path]:
    numbered = {parse_version(entry.name): entry for entry in entries}
    return {number: numbered[number] for number in sorted(n for n in numbered if n is not None)}


def _no_version(directory: Path, entries: Sequence[Path]) -> Problem:
    others = sorted(entry.name for entry in entries if not is_ignored(entry.name))
    named = f" ({', '.join(map(repr, others))} is none)" if others else ""
    expected = f"has no version: a directory named by {VERSION_RULE}{named}"
    return Problem(directory, "", None, expected)


def _policy_problems(
    directory: Path, settings: ModelSettings, versions: Mapping[int, Path]
) -> list[Problem]:
    if not isinstance(settings.version_policy, Specific):
        return []
    field_name = "version_policy.specific.versions"
    there = ", ".join(map(str, versions)) or "none"
    return [
        Problem(directory / MODEL_FILE, field_name, version, f"is not there; there is {there}")
        for version in sorted(settings.version_policy.versions - versions.keys())
    ]


def _one_of(models: Sequence[SourceModel]) -> SourceModel:
    if len(models) == 1:
        return models[0]
    places = " and ".join(str(model.directory) for model in models)
    expected = f"two models have the name {models[0].name!r}: {places}; rename or remove one"
    problem = Problem(models[0].directory, "", None, expected)
    return SourceModel(models[0].name, models[0].directory, problems=(problem,), readable=False)


def _without_contested_aliases(models: Mapping[str, SourceModel]) -> dict[str, SourceModel]:
    claims: dict[str, list[str]] = defaultdict(list)
    for model in models.values():
        for alias in model.aliases:
            claims[alias].append(model.name)
    return {name: _with_own_aliases(model, models, claims) for name, model in models.items()}


def _with_own_aliases(
    model: SourceModel, models: Mapping[str, SourceModel], claims: Mapping[str, Sequence[str]]
) -> SourceModel:
    own: list[str] = []
    problems = list(model.problems)
    for alias in model.aliases:
        others = [name for name in claims[alias] if name != model.name]
        if alias in models:
            expected = f"is the name of the model at {models[alias].directory}; choose another"
        elif others:
            expected = f"is also an alias of the model {others[0]!r}; only one may have it"
        else:
            own.append(alias)
            continue
        problems.append(Problem(model.directory / MODEL_FILE, "aliases", alias, expected))
    return replace(model, aliases=tuple(own), problems=tuple(problems))
