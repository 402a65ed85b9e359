"""The models a worker can serve now, and who still holds which of their endpoints.

The catalog's follower publishes the complete set each time; requests lease an entry by name. All
calls are made on the worker's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType

from blink_server.backend import Session
from blink_server.errors import BlinkError, Unavailable, UnknownModel
from blink_server.http.model_entry import ModelEntry, ServerState, why_not_ready
from blink_server.messages import EndpointKey
from blink_server.repository.names import parse_version
from blink_server.suggestion import suggestion
from blink_server.text.grammar.compiler import GrammarCompiler


class Lease:
    """A request's hold on one endpoint, from `ModelDirectory.lease` until `release`."""

    def __init__(self, directory: ModelDirectory, entry: ModelEntry, session: Session) -> None:
        self.entry = entry
        self.session = session
        self._directory: ModelDirectory | None = directory
        self._interruption: BlinkError | None = None
        self._when_interrupted: Callable[[BlinkError], None] = lambda _: None

    def share(self) -> Lease:
        """A further lease on the same endpoint, whatever has been published since."""
        if self._directory is None:
            raise RuntimeError(f"the lease on {self.entry.key} has ended")
        return self._directory._hold(self.entry, self.session)

    def release(self) -> None:
        """Let go; further calls do nothing."""
        directory, self._directory = self._directory, None
        if directory is not None:
            directory._release(self)

    def when_interrupted(self, callback: Callable[[BlinkError], None]) -> None:
        """Call `callback(error)` when the request has to end, at once if it has to by now."""
        self._when_interrupted = callback
        if self._interruption is not None:
            callback(self._interruption)

    def interrupt(self, error: BlinkError) -> None:
        """The time of the request is over; `error` is what its client hears."""
        self._interruption = error
        self._when_interrupted(error)

    def __enter__(self) -> ModelEntry:
        return self.entry

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class ModelDirectory:
    """Lookups by "name" (its highest READY version) or "name:3", and leases on what was found."""

    def __init__(self, grammars: GrammarCompiler | None = None) -> None:
        self.grammars = grammars or GrammarCompiler()
        """Compiles what requests demand of their answers."""
        self._all: list[ModelEntry] = []
        self._models: dict[str, dict[int, ModelEntry]] = {}
        self._names: dict[str, str] = {}
        self._without_version: dict[str, ModelEntry] = {}
        self._server = ServerState.STARTING
        self._leases: dict[EndpointKey, set[Lease]] = {}
        self._retired: set[EndpointKey] = set()
        self._on_released: list[Callable[[EndpointKey], None]] = []
        self._changed = asyncio.Event()

    def publish(
        self, entries: Iterable[ModelEntry], *, server: ServerState = ServerState.READY
    ) -> None:
        """Make `entries` the complete set. An endpoint that no longer serves is retired:

        the callbacks of `on_released` hear of it once no request holds it, at once if none does.
        Of several generations of a version, the latest that serves is the one that requests get.
        Version 0 is none: its entry says why its model has no other.
        """
        before = {entry.key for entry in self._all if entry.serves}
        everything = list(entries)
        self._without_version = {e.version.model: e for e in everything if not e.version.version}
        self._all = [entry for entry in everything if entry.version.version]
        self._models, self._names = {}, {}
        for entry in sorted(self._all, key=_rank):
            model = entry.version.model
            self._models.setdefault(model, {})[entry.version.version] = entry
            self._names.update(dict.fromkeys(entry.aliases, model))
        # A model's own name wins over another's alias.
        self._names.update({model: model for model in self._models})
        self._server = server
        serving = {entry.key for entry in self._all if entry.serves}
        self._retired = (self._retired | before) - serving
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for key in [key for key in self._retired if key not in self._leases]:
            self._let_go(key)

    def on_released(self, callback: Callable[[EndpointKey], None]) -> None:
        """Call `callback(key)` once for each retired endpoint when its last lease has ended."""
        self._on_released.append(callback)

    @property
    def entries(self) -> list[ModelEntry]:
        """The entry of every version published, by model and version."""
        return [
            self._models[model][version]
            for model in sorted(self._models)
            for version in sorted(self._models[model])
        ]

    @property
    def without_version(self) -> list[ModelEntry]:
        """The entry of version 0 of every model that has no other: its reason says why."""
        return [
            entry
            for model, entry in sorted(self._without_version.items())
            if model not in self._models
        ]

    @property
    def models(self) -> list[str]:
        """The name of every model that has a version."""
        return sorted(self._models)

    @property
    def serving(self) -> list[str]:
        """The name of every model that serves."""
        return [m for m in self.models if any(e.serves for e in self._models[m].values())]

    @property
    def server(self) -> ServerState:
        return self._server

    def find(self, name: str) -> ModelEntry:
        """The entry that requests for `name` get, or the one that says best why they get none.

        Raises `UnknownModel`; `Unavailable` for a model of which it cannot be told what it is.
        """
        base, _, suffix = name.partition(":")
        versions = self._models.get(self._names.get(base, ""), {})
        if not versions and base in self._without_version:
            why = why_not_ready(self._without_version[base])
            raise Unavailable(f"the model {base!r} is {why}")
        if suffix or name.endswith(":"):
            entry = versions.get(parse_version(suffix) or 0)
            if entry is None:
                raise self._unknown(name, versions)
            return entry
        if not versions:
            raise self._unknown(name, versions)
        serving = [version for version, entry in versions.items() if entry.serves]
        return versions[max(serving or versions)]

    def _unknown(self, name: str, versions: Mapping[int, ModelEntry]) -> UnknownModel:
        """The error for a name; `versions` are those of its model, if there is one."""
        base = name.partition(":")[0]
        known = [f"{base}:{number}" for number, entry in sorted(versions.items()) if entry.serves]
        if not versions:
            serving = set(self.serving)
            known = sorted(alias for alias, model in self._names.items() if model in serving)
        return UnknownModel(name, suggestion(name, known, "serve"))

    def lease(self, name: str) -> Lease:
        """Hold the endpoint that serves `name`. Raises `UnknownModel`, `Unavailable`."""
        entry = self.find(name)
        session = entry.session
        if self._server is ServerState.DRAINING:
            raise Unavailable("the server is shutting down")
        if not entry.serves or session is None:
            raise Unavailable(f"the model {name!r} is {why_not_ready(entry)}")
        return self._hold(entry, session)

    async def lease_awaited(self, name: str, *, timeout: float) -> Lease:  # noqa: ASYNC109
        """Hold the endpoint that serves `name`, waiting for one that the catalog calls awaited.

        Raises as `lease` does, at once where none is awaited, else after `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while self._is_awaited(name):
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self.lease(name)

    def _is_awaited(self, name: str) -> bool:
        found = self.find(name)
        if found.serves or self._server is ServerState.DRAINING:
            return False
        model, version = found.version.model, found.version.version
        return any(
            entry.awaited
            for entry in self._all
            if entry.version.model == model
            and (":" not in name or entry.version.version == version)
        )

    async def lease_next(self, name: str, *, after: Lease, timeout: float) -> Lease:  # noqa: ASYNC109
        """Hold what serves `name` once that is no longer the session of `after`.

        Raises `Unavailable` after `timeout` seconds, and as `lease` does.
        """
        try:
            async with asyncio.timeout(timeout):
                while (entry := self.find(name)).serves and entry.session is after.session:
                    await self._changed.wait()
                while self._is_awaited(name):
                    await self._changed.wait()
        except TimeoutError:
            raise Unavailable(f"the model {name!r} is changing its endpoint") from None
        return self.lease(name)

    async def until_unready(self, model: str, *, timeout: float) -> None:  # noqa: ASYNC109
        """Wait until no version of the model serves, `timeout` seconds at most."""
        try:
            async with asyncio.timeout(timeout):
                while any(e.serves for e in self._models.get(model, {}).values()):
                    await self._changed.wait()
        except TimeoutError:
            return

    def leases(self, key: EndpointKey) -> int:
        """How many requests hold an endpoint."""
        return len(self._leases.get(key, ()))

    def interrupt(self, keys: Iterable[EndpointKey], error: BlinkError) -> None:
        """End every request that holds one of these endpoints; its client hears `error`."""
        for key in keys:
            for lease in list(self._leases.get(key, ())):
                lease.interrupt(error)

    def _hold(self, entry: ModelEntry, session: Session) -> Lease:
        lease = Lease(self, entry, session)
        self._leases.setdefault(entry.key, set()).add(lease)
        return lease

    def _release(self, lease: Lease) -> None:
        key = lease.entry.key
        self._leases[key].discard(lease)
        if not self._leases[key]:
            del self._leases[key]
            if key in self._retired:
                self._let_go(key)

    def _let_go(self, key: EndpointKey) -> None:
        self._retired.discard(key)
        for callback in self._on_released:
            callback(key)


def _rank(entry: ModelEntry) -> tuple[bool, int]:
    return entry.serves, entry.epoch
