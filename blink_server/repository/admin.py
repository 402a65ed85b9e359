"""What can be asked of the repository: the index and, in explicit mode, load and unload.

Asked over the control channel, by an HTTP worker or by `blink-server models`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from blink_server.catalog import Catalog
from blink_server.config import MODEL_FILE
from blink_server.control_server import Peer
from blink_server.errors import BlinkError, Problem
from blink_server.logs import LEVELS, set_level
from blink_server.message_codec import ProtocolError
from blink_server.messages import FROM_CLIENT, Answer, Ask, EndpointKey, RegisterClient
from blink_server.model_rows import ModelRow, to_columns
from blink_server.repository.follower import RepositoryFollower
from blink_server.repository.harness import State
from blink_server.repository.manager import Manager
from blink_server.repository.policy import VersionKey
from blink_server.repository.requests import LoadRequests
from blink_server.repository.supervisor import Supervisor
from blink_server.repository.wanted import WantedSet
from blink_server.suggestion import suggestion

log = logging.getLogger(__name__)

_REACH_SECONDS = 10.0
_CHECK_AGAIN = 0.2


class ControlMode(StrEnum):
    """Who decides which models are served."""

    NONE = "none"  # the repository as it is at the start
    WATCH = "watch"  # the repository as it is now
    EXPLICIT = "explicit"  # whoever asks by API


class Admin:
    """All calls on the provisioner's event loop."""

    def __init__(
        self,
        mode: ControlMode,
        manager: Manager,
        catalog: Catalog,
        follower: RepositoryFollower,
        requests: LoadRequests | None,
    ) -> None:
        """`requests`: what the follower looks for; there in explicit mode alone."""
        self._mode = mode
        self._manager = manager
        self._catalog = catalog
        self._follower = follower
        self._requests = requests

    async def serve_client(self, peer: Peer, registration: RegisterClient) -> None:
        """Answer one client's questions, in their order, until it goes."""
        async for message in peer.messages(FROM_CLIENT):
            if not isinstance(message, Ask):
                raise ProtocolError("registered twice")
            try:
                answer = await self._answer(message)
            except BlinkError as error:
                answer = Answer(message.id, "failed", str(error))
            await peer.send(answer)

    async def _answer(self, ask: Ask) -> Answer:
        if ask.action == "index":
            rows = model_rows(self._follower.wanted, self._manager.supervisors)
            if ask.usage:
                rows = _with_usage(rows, await self._catalog.usage())
            return Answer(ask.id, rows=to_columns(rows))
        if ask.action == "log_level":
            return await self._set_log_level(ask)
        if self._requests is None:
            return Answer(
                ask.id,
                "refused",
                f"models are loaded and unloaded by request only with --model-control explicit; "
                f"this server has {self._mode}",
            )
        if ask.action == "load":
            return await self._load(ask, self._requests)
        return await self._unload(ask, self._requests)

    async def _set_log_level(self, ask: Ask) -> Answer:
        if ask.level not in LEVELS:
            return Answer(ask.id, "failed", f"{ask.level!r} is no log level: {', '.join(LEVELS)}")
        set_level(ask.level)
        await self._catalog.set_log_level(ask.level)
        return Answer(ask.id)

    async def _load(self, ask: Ask, requests: LoadRequests) -> Answer:
        before = requests.get(ask.model)
        requests.ask(ask.model, ask.config, force=ask.force)
        wanted = await self._follower.look()
        while ask.model in wanted.checking:
            await asyncio.sleep(_CHECK_AGAIN)
            wanted = await self._follower.look()
        if reason := wanted.held.get(ask.model):
            return Answer(ask.id, "failed", reason)
        if ask.model not in wanted.present:
            if before is None:
                requests.drop(ask.model)
            problems = "; ".join(_problems(wanted, ask.model))
            return Answer(ask.id, "unknown", problems or _unknown(ask.model, wanted.present))
        generations = [each.generation for each in wanted.valid if each.key.model == ask.model]
        supervisors = await self._manager.supervising(generations)
        for supervisor in supervisors:
            if supervisor.harness.state is State.UNAVAILABLE:
                supervisor.retry()
        log.info("load of %s asked for: %d of its versions are valid", ask.model, len(generations))
        await asyncio.gather(*(self._outcome(each) for each in supervisors))
        reasons = [f"{e.key}: {e.reason}" for e in wanted.invalid if e.key.model == ask.model]
        reasons += [
            f"{each.wanted.key}: {each.harness.reason}"
            for each in supervisors
            if each.harness.state is not State.READY
        ]
        if not supervisors:
            reasons = reasons or _problems(wanted, ask.model) or ["no version of it is wanted"]
            reasons.insert(0, f"{ask.model} has no valid version")
            log.warning("nothing to load: %s", "; ".join(reasons))
        if reasons:
            return Answer(ask.id, "failed", "; ".join(reasons))
        return Answer(ask.id)

    async def _outcome(self, supervisor: Supervisor) -> None:
        """Wait until it serves, at every worker, or cannot."""
        await supervisor.settled.wait()
        if supervisor.harness.state is State.READY and supervisor.runner is not None:
            await self._catalog.until_reachable(supervisor.runner.key, _REACH_SECONDS)

    async def _unload(self, ask: Ask, requests: LoadRequests) -> Answer:
        present = self._follower.wanted.present
        known = {*present, *(each.wanted.key.model for each in self._manager.supervisors)}
        if ask.model not in known:
            return Answer(ask.id, "unknown", _unknown(ask.model, known))
        requests.drop(ask.model)
        await self._follower.look()
        await self._manager.until_left(ask.model)
        return Answer(ask.id)


def _model_of(problem: Problem) -> str:
    """The model that a problem of no version is one of."""
    in_model = problem.file.name == MODEL_FILE
    return problem.file.parent.name if in_model else problem.file.name


def _problems(wanted: WantedSet, model: str) -> list[str]:
    return [str(problem) for problem in wanted.problems if _model_of(problem) == model]


def _unknown(model: str, known: Iterable[str]) -> str:
    return f"there is no model {model!r}; {suggestion(model, sorted(known), 'exist')}"


def model_rows(wanted: WantedSet, supervisors: Iterable[Supervisor]) -> list[ModelRow]:
    """A row for each version on disk or in service, and for each model that has none."""
    rows: dict[VersionKey, ModelRow] = {
        VersionKey(model, version): ModelRow(model, version, "UNAVAILABLE", "not loaded")
        for model, versions in wanted.present.items()
        for version in versions
    }
    for invalid in wanted.invalid:
        key = invalid.key
        rows[key] = ModelRow(key.model, key.version, "UNAVAILABLE", invalid.reason)
    for supervisor in sorted(supervisors, key=_rank):
        key = supervisor.wanted.key
        rows[key] = _row(supervisor, rows.get(key))
    for problem in wanted.problems:
        name = _model_of(problem)
        if not any(key.model == name for key in rows):
            rows[VersionKey(name, 0)] = ModelRow(name, 0, "UNAVAILABLE", str(problem))
    return [rows[key] for key in sorted(rows)]


def _rank(supervisor: Supervisor) -> tuple[bool, int]:
    return supervisor.harness.state is State.READY, supervisor.harness.epoch


def _row(supervisor: Supervisor, beneath: ModelRow | None) -> ModelRow:
    """A version's row; one that serves says also why its successor does not."""
    harness, attempts = supervisor.harness, supervisor.attempts
    reason = harness.reason
    if harness.state is State.LOADING:
        again = f"tried again after: {attempts.failure}" if attempts.failure else ""
        reason = "; ".join(filter(None, (supervisor.progress, again)))
    elif harness.state is State.UNAVAILABLE and attempts.retry_at:
        due = time.strftime("%FT%TZ", time.gmtime(attempts.retry_at))
        reason = f"{reason}; next try at {due}"
    elif harness.state is State.READY and beneath is not None and beneath.since:
        reason = f"reload: {beneath.state.lower()}"
        reason += f": {beneath.reason}" if beneath.reason else ""
    elif harness.state is State.READY and beneath is not None and beneath.reason != "not loaded":
        reason = f"reload: {beneath.reason}"
    return ModelRow(
        model=harness.model,
        version=harness.version,
        state=str(harness.state),
        reason=reason,
        epoch=harness.epoch,
        since=supervisor.since,
        load_seconds=supervisor.load_seconds,
        retry_at=attempts.retry_at,
    )


def _with_usage(rows: Iterable[ModelRow], used: Mapping[EndpointKey, int]) -> list[ModelRow]:
    counts: Counter[VersionKey] = Counter()
    for key, count in used.items():
        counts[VersionKey(key.model, key.version)] += count
    return [replace(row, requests=counts[VersionKey(row.model, row.version)]) for row in rows]
