"""Reads the repositories again and again: what is complete on disk becomes the wanted set.

A version that is being written is not there yet, or is still what it was before. What has not
changed since the last reading is not validated again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from blink_server.errors import InvalidModel, Problem
from blink_server.plugins import Plugins
from blink_server.repository.checks import RunningChecks
from blink_server.repository.policy import Generation, VersionKey, select_versions
from blink_server.repository.requests import LoadRequest, LoadRequests
from blink_server.repository.settling import Settling
from blink_server.repository.source import SourceModel, read_repositories
from blink_server.repository.stamps import Stamp, read_stamp
from blink_server.repository.validator import CHECK_SECONDS, validate_version
from blink_server.repository.wanted import InvalidVersion, WantedSet, WantedVersion

_ANY = LoadRequest()


@dataclass(frozen=True, slots=True)
class _Validated:
    """What a version was found to be, and what it was judged by."""

    stamp: Stamp
    defaults: Mapping[str, Any]
    request: LoadRequest
    result: WantedVersion | InvalidVersion


class RepositoryReader:
    """One reader of one set of repositories; its calls must not overlap, and may block."""

    def __init__(
        self,
        repositories: Iterable[Path],
        plugins: Plugins,
        settling: Settling,
        *,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        """`check_seconds`: how long plugins may take to check a version."""
        # Runners and workers, who may have another working directory, read the paths too.
        self._repositories = [path.absolute() for path in repositories]
        self._plugins = plugins
        self._settling = settling
        self._models: Mapping[str, SourceModel] = {}
        self._stamps: dict[Path, Stamp] = {}
        self._unsettled: set[Path] = set()
        self._validated: dict[Path, _Validated] = {}
        self._check_seconds = check_seconds
        self._checks = RunningChecks()
        self._known: set[str] = set()  # models that have been seen complete

    def read(
        self, requests: LoadRequests | None = None, broken: Collection[Generation] = ()
    ) -> WantedSet:
        """The wanted set as of now, of those models alone that are asked for where some are.

        `broken`: generations that could not be loaded. Raises BlinkError for a repository that
        cannot be read.
        """
        self._stamps, self._unsettled = {}, set()
        self._models = read_repositories(self._repositories, visible=self._visible)
        self._forget_what_is_gone(self._models.values())
        complete = [model for model in self._models.values() if self._is_complete(model)]
        self._known = {name for name in self._models if name in self._known}
        self._known.update(model.name for model in complete if model.readable)
        return self.select(requests, broken)

    def select(
        self, requests: LoadRequests | None = None, broken: Collection[Generation] = ()
    ) -> WantedSet:
        """The wanted set as of the last reading, with others broken or asked for."""
        complete = [model for model in self._models.values() if self._is_complete(model)]
        asked = {
            model.name: request
            for model in self._models.values()
            if (request := _ANY if requests is None else requests.get(model.name)) is not None
        }
        results = [
            result
            for model in complete
            if model.name in asked
            for result in self._selected(model, asked[model.name], broken)
        ]
        return WantedSet(
            valid=[each for each in results if isinstance(each, WantedVersion)],
            invalid=[each for each in results if isinstance(each, InvalidVersion)],
            problems=[problem for model in complete for problem in model.problems],
            held={
                name: _reason(self._models[name].problems, self._models[name].directory)
                for name in asked
                if not self._models[name].readable
            },
            aliases={model.name: model.aliases for model in complete if model.readable},
            present={model.name: tuple(model.versions) for model in complete},
            checking={directory.parent.name for directory in self._checks.directories},
        )

    @property
    def due(self) -> float | None:
        """Seconds until a version that was still being written, or checked, may be done.

        None where there is none.
        """
        due = (self._settling.due(self._unsettled), self._checks.due)
        return min((seconds for seconds in due if seconds is not None), default=None)

    def _forget_what_is_gone(self, models: Iterable[SourceModel]) -> None:
        held = {model.directory for model in models if not model.readable}
        kept = {d for d in self._validated if d in self._stamps or d.parent in held}
        self._validated = {directory: self._validated[directory] for directory in kept}
        self._settling.keep_only(kept | self._stamps.keys())
        self._checks.keep_only(self._stamps.keys())

    def _visible(self, directory: Path) -> bool:
        stamp = self._stamps[directory] = read_stamp(directory)
        if self._settling.settled(directory, stamp):
            return True
        self._unsettled.add(directory)
        return directory in self._validated

    def _is_complete(self, model: SourceModel) -> bool:
        """A model that comes for the first time comes with all its versions and its model.json."""
        return model.name in self._known or not self._writing(model)

    def _writing(self, model: SourceModel) -> bool:
        return any(directory.parent == model.directory for directory in self._unsettled)

    def _selected(
        self, model: SourceModel, request: LoadRequest, broken: Collection[Generation]
    ) -> list[WantedVersion | InvalidVersion]:
        """What the policy wants; lower versions are looked at only where higher ones are broken."""
        results: dict[int, WantedVersion | InvalidVersion] = {}
        unfit: set[int] = set()
        while True:
            selected = select_versions(model.settings.version_policy, model.versions, unfit)
            new = [number for number in selected if number not in results]
            if not new:
                return [results[number] for number in selected]
            for number in new:
                result = results[number] = self._result(model, number, request)
                if isinstance(result, InvalidVersion) or result.generation in broken:
                    unfit.add(number)

    def _result(
        self, model: SourceModel, number: int, request: LoadRequest
    ) -> WantedVersion | InvalidVersion:
        directory = model.versions[number]
        stamp, defaults = self._stamps[directory], model.settings.defaults
        before = self._validated.get(directory)
        now = stamp, defaults, request
        if before is not None and (
            directory in self._unsettled or (before.stamp, before.defaults, before.request) == now
        ):
            return _with_settings(before.result, model)
        result = self._validate(model, number, stamp, request)
        if result is None:
            key, config = VersionKey(model.name, number), "its tokenizer and its backend"
            return InvalidVersion(key, directory, f"{config} have not checked it yet")
        self._validated[directory] = _Validated(*now, result)
        return result

    def _validate(
        self, model: SourceModel, number: int, stamp: Stamp, request: LoadRequest
    ) -> WantedVersion | InvalidVersion | None:
        """What the version is found to be; None while that is not known."""
        directory = model.versions[number]
        self._plugins.refresh()
        check = partial(
            validate_version,
            model,
            number,
            self._plugins,
            override=request.config,
            seconds=self._check_seconds,
        )
        try:
            subject = stamp, model.settings.defaults, request
            version = self._checks.outcome(directory, subject, check)
        except InvalidModel as error:
            return InvalidVersion(
                VersionKey(model.name, number), directory, _reason(error.problems, directory)
            )
        if version is None:
            return None
        found = WantedVersion(version, content=stamp.content(version.config) + request.mark)
        return _with_settings(found, model)


def _with_settings(
    result: WantedVersion | InvalidVersion, model: SourceModel
) -> WantedVersion | InvalidVersion:
    if isinstance(result, InvalidVersion):
        return result
    return replace(result, aliases=model.aliases, unload_first=model.settings.unload_first)


def _reason(problems: Collection[Problem], directory: Path) -> str:
    # Clients are told the reason too, and need not know where the repository lies.
    text = "; ".join(str(problem).replace("\n", "; ") for problem in problems)
    return text.replace(f"{directory}/", "")
