"""Makes what runs what the repository wants, one supervisor a version, and publishes the result."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence

from blink_server.backend import Backend
from blink_server.catalog import Catalog, ServerState
from blink_server.control_server import Peer
from blink_server.messages import CatalogEntry, EndpointKey, RegisterRunner, Stop
from blink_server.repository.admission import Admission
from blink_server.repository.harness import Harness, State
from blink_server.repository.policy import Load, VersionKey, next_actions
from blink_server.repository.runner_process import RunnerProcess
from blink_server.repository.supervisor import Limits, Supervisor
from blink_server.repository.wanted import InvalidVersion, WantedVersion
from blink_server.runtime_dir import RuntimeDirectory

log = logging.getLogger(__name__)


class Manager:
    """All calls on the provisioner's event loop."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        catalog: Catalog,
        runtime: RuntimeDirectory,
        *,
        limits: Limits | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._backends = backends
        self._catalog = catalog
        self._runtime = runtime
        self._limits = limits or Limits()
        self._admission = admission or Admission()
        self._supervisors: dict[VersionKey, Supervisor] = {}
        self._tasks: dict[VersionKey, asyncio.Task[None]] = {}
        self._invalid: dict[VersionKey, InvalidVersion] = {}
        self._wanted: dict[VersionKey, WantedVersion] = {}
        self._epochs: dict[VersionKey, int] = {}  # of the last load, also of versions gone
        self._inherited: dict[VersionKey, RunnerProcess] = {}
        self._draining = False
        self._drain_seconds = 0.0

    async def inherit(self) -> None:
        """Find the runners that a dead predecessor has left in the runtime directory.

        Call it before `apply`, which puts those that are wanted into service again and ends the
        others. Of two runners of one version, the later serves on.
        """
        found = [RunnerProcess.take_over(d) for d in self._runtime.runner_directories()]
        runners = sorted((r for r in found if r is not None), key=lambda r: r.key.epoch)
        for runner in runners:
            key = VersionKey(runner.key.model, runner.key.version)
            self._epochs[key] = runner.key.epoch
            if (older := self._inherited.pop(key, None)) is not None:
                await older.stop(self._limits.kill_grace)
            self._inherited[key] = runner

    async def apply(
        self,
        wanted: Sequence[WantedVersion],
        invalid: Sequence[InvalidVersion] = (),
        *,
        drain_seconds: float = 30.0,
    ) -> None:
        """Begin to make this, the complete wanted set, what runs; returns without waiting."""
        self._drain_seconds = drain_seconds
        self._wanted = {w.key: w for w in wanted}
        self._invalid = {i.key: i for i in invalid}
        for key in [k for k in self._inherited if k not in self._wanted]:
            await self._inherited.pop(key).stop(self._limits.kill_grace)
        self._act()
        await self.publish()

    async def settled(self) -> None:
        """Wait until every wanted version has been READY or UNAVAILABLE once."""
        for supervisor in list(self._supervisors.values()):
            await supervisor.settled.wait()

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        """Of every version that is not gone, by name and version."""
        return [self._supervisors[key] for key in sorted(self._supervisors)]

    async def runner_connected(self, peer: Peer, registration: RegisterRunner) -> None:
        """Serve one runner's control connection; a runner that nobody started is told to stop."""
        key = EndpointKey(registration.model, registration.version, registration.epoch)
        supervisor = self._supervisors.get(VersionKey(key.model, key.version))
        runner = supervisor.runner if supervisor is not None else None
        if runner is None or runner.key != key:
            log.warning("%s: %s is not wanted, told to stop", peer.name, key)
            await peer.send(Stop())
            return
        await runner.serve(peer)

    async def drain(self) -> None:
        """The server is going: say so to the workers, who refuse new requests from then on."""
        self._draining = True
        await self.publish()

    async def close(self, drain_seconds: float) -> None:
        """Unload every version, giving requests in flight `drain_seconds`; waits for the end."""
        self._draining = True
        for supervisor in self._supervisors.values():
            supervisor.leave(drain_seconds)
        await asyncio.gather(*self._tasks.values())
        for runner in self._inherited.values():
            await runner.stop(self._limits.kill_grace)
        self._inherited.clear()

    def kill(self) -> None:
        """End every runner at once; `close` then returns soon."""
        for supervisor in self._supervisors.values():
            supervisor.kill()

    async def publish(self) -> None:
        """Tell the workers of every version and of the server's own state.

        Nothing is said before the runners of a predecessor are back: its workers serve on with
        the catalog they have, which is true of them.
        """
        if any(s.returning for s in self._supervisors.values()):
            return
        entries = [s.entry() for s in self._supervisors.values()]
        entries += [_invalid_entry(i) for i in self._invalid.values()]
        await self._catalog.publish(
            self._server_state(), sorted(entries, key=lambda e: (e.model, e.version))
        )

    def _server_state(self) -> ServerState:
        if self._draining:
            return "DRAINING"
        settled = all(s.settled.is_set() for s in self._supervisors.values())
        return "READY" if settled else "STARTING"

    def _act(self) -> None:
        if self._draining:
            return
        actual = {key: s.harness.state for key, s in self._supervisors.items()}
        for action in next_actions(self._wanted.keys(), actual):
            if isinstance(action, Load):
                self._load(self._wanted[action.key])
            else:
                self._supervisors[action.key].leave(self._drain_seconds)

    def _load(self, wanted: WantedVersion) -> None:
        key = wanted.key
        inherited = self._inherited.pop(key, None)
        epoch = self._epochs.get(key, 0) if inherited is None else inherited.key.epoch - 1
        harness = Harness(key.model, key.version, epoch=epoch)
        harness.observe(self._changed)
        supervisor = Supervisor(
            wanted,
            harness,
            backend=self._backends[str(wanted.version.config["backend"])],
            threads=_threads_each(len(self._wanted)),
            runtime=self._runtime,
            admission=self._admission,
            limits=self._limits,
            publish=self.publish,
            released=lambda runner: self._catalog.released(runner.key),
            inherited=inherited,
        )
        self._supervisors[key] = supervisor
        self._tasks[key] = asyncio.create_task(self._supervise(key, supervisor), name=str(key))

    async def _supervise(self, key: VersionKey, supervisor: Supervisor) -> None:
        await supervisor.run()
        self._epochs[key] = supervisor.harness.epoch
        del self._supervisors[key], self._tasks[key]
        self._act()
        await self.publish()

    def _changed(self, harness: Harness, previous: State) -> None:
        reason = f": {harness.reason}" if harness.reason else ""
        level = logging.WARNING if reason and previous is not State.UNLOADING else logging.INFO
        log.log(level, "%s:%d %s%s", harness.model, harness.version, harness.state, reason)
        # What is READY now may let an older version go; an observer must not do that itself.
        asyncio.get_running_loop().call_soon(self._act)


def _threads_each(versions: int) -> int:
    return max(1, len(os.sched_getaffinity(0)) // max(1, versions))


def _invalid_entry(invalid: InvalidVersion) -> CatalogEntry:
    return CatalogEntry(
        model=invalid.key.model,
        version=invalid.key.version,
        epoch=0,
        state=str(State.UNAVAILABLE),
        reason=invalid.reason,
        directory=str(invalid.directory),
        config={},
        aliases=(),
        backend="",
        endpoint=None,
    )
