"""One generation's life: load its runner, watch it, start it again when it dies, let it go.

Drives the generation's `Harness` and owns its `RunnerProcess`. Every change is published before
this goes on, so that workers never learn of a READY version late or of a dead one never.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from blink_server.backend import Backend, Endpoint
from blink_server.errors import BlinkError
from blink_server.messages import CatalogEntry, Ready
from blink_server.model_events import ModelStateChange
from blink_server.repository.attempts import Attempts
from blink_server.repository.harness import Harness, State
from blink_server.repository.interruptible import unless
from blink_server.repository.loading import Runner, registered, start_runner, warmed_up
from blink_server.repository.runner_process import LoadError, RunnerProcess
from blink_server.repository.surroundings import Surroundings
from blink_server.repository.wanted import WantedVersion

log = logging.getLogger(__name__)


class Supervisor:
    """Supervises one generation in one task, `run`, which ends after `leave` or `kill`."""

    def __init__(
        self,
        wanted: WantedVersion,
        harness: Harness,
        around: Surroundings,
        *,
        backend: Backend,
        next_epoch: Callable[[], int],
        inherited: RunnerProcess | None = None,
        awaited: bool = False,
    ) -> None:
        """`inherited` is a runner that a dead predecessor has left. `awaited`: requests wait."""
        self.wanted = wanted
        self.harness = harness
        self._around = around
        self._limits = around.limits
        self._backend = backend
        self._next_epoch = next_epoch
        self._endpoint: Endpoint | None = None
        self._leaving = asyncio.Event()
        self._retry = asyncio.Event()
        self._drain_seconds = 0.0
        self.runner: Runner | None = inherited
        self.returning = inherited is not None  # it has still to register with this server
        self.settled = asyncio.Event()  # READY or UNAVAILABLE once
        self.proven = inherited is not None  # has been READY
        self.attempts = Attempts(around.limits)
        self.awaited = awaited  # what served has made way for it: requests wait
        self.load_seconds = 0.0  # of the last load that got READY
        self.since = time.time()  # of its state, seconds since 1970
        harness.observe(self._note)

    def _note(self, harness: Harness, previous: State) -> None:
        now = time.time()
        change = ModelStateChange(
            model=harness.model,
            version=harness.version,
            epoch=harness.epoch,
            previous=str(previous),
            state=str(harness.state),
            reason=harness.reason,
            seconds=max(now - self.since, 0.0),
            at=now,
        )
        self.since = now
        self.proven = self.proven or harness.state is State.READY
        trouble = harness.reason and previous is not State.UNLOADING
        log.log(logging.WARNING if trouble else logging.INFO, "%s", change)
        self._around.observe(change)

    def entry(self) -> CatalogEntry:
        """The version as workers see it: an endpoint only while new requests may use it."""
        version, state = self.wanted.version, self.harness.state
        ready = state is State.READY
        return CatalogEntry(
            model=version.model,
            version=version.version,
            epoch=self.harness.epoch,
            state=str(state),
            reason=self.attempts.failure if state is State.LOADING else self.harness.reason,
            directory=str(version.directory),
            config=version.config,
            aliases=self.wanted.aliases,
            backend=self._backend.name,
            endpoint=self._endpoint if ready else None,
            awaited=self.awaited,
            load_seconds=self.load_seconds,
        )

    @property
    def progress(self) -> str:
        """How far its load is, by its runner; empty where none says so."""
        return self.runner.progress if isinstance(self.runner, RunnerProcess) else ""

    @property
    def leaving(self) -> bool:
        """Whether it has been told to go."""
        return self._leaving.is_set()

    def leave(self, drain_seconds: float) -> None:
        """Have the version drained and its runner ended; `run` returns when that is done."""
        self._drain_seconds = drain_seconds
        self._leaving.set()

    def kill(self) -> None:
        """End the runner without asking it."""
        self.leave(0.0)
        if self.runner is not None:
            self.runner.process.kill()

    def retry(self) -> None:
        """Load again now, where it waits for its time to do so; `settled` tells the outcome."""
        self.settled.clear()
        self._retry.set()

    async def run(self) -> None:
        """Keep the version in service until told to leave."""
        while not self._leaving.is_set():
            self._retry.clear()
            seconds = self.attempts.wait(await self._load_and_serve())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await unless(self._leaving, self._retry.wait())
        await self._stop_runner()  # an inherited one that was not even asked for

    async def _load_and_serve(self) -> float:
        """One load until the runner's end; returns the seconds it was READY."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            ready = await self._load()
        except Exception as error:
            await self._load_failed(error)
            return 0.0
        if ready is None:
            await self._unload()
            return 0.0
        self._around.admission.settle(self.wanted.generation)
        self._endpoint, self.awaited = ready.endpoint, False
        self.load_seconds = loop.time() - started
        self.returning = False
        was_broken = self.attempts.broken
        self.attempts.succeeded()
        self.harness.ready()
        await self._settle(reselect=was_broken)
        await self._serve()
        return loop.time() - started - self.load_seconds

    async def _load(self) -> Ready | None:
        """The loaded runner's word; None when the version has to go before it is loaded."""
        if self.returning:
            assert isinstance(self.runner, RunnerProcess)
            await self._begin_load(self.runner.key.epoch)
            return await unless(self._leaving, self._returned(self.runner))
        if not await unless(self._leaving, self._around.loading.acquire()):
            return None
        try:
            await self._begin_load(self._next_epoch())
            epoch, backend = self.harness.epoch, self._backend
            self.runner = await start_runner(self.wanted, epoch, backend, self._around)
            return await unless(
                self._leaving, warmed_up(self.runner, self.wanted, backend, self._around)
            )
        finally:
            self._around.loading.release()

    async def _begin_load(self, epoch: int) -> None:
        self.attempts.begun()
        self.harness.load(epoch)
        await self._around.publish()

    async def _returned(self, runner: RunnerProcess) -> Ready:
        if (ready := await registered(runner)) is not None:
            return ready
        self.returning = False
        await self._around.publish()
        return await runner.loaded(self._limits.load)

    async def _load_failed(self, error: Exception) -> None:
        if not isinstance(error, BlinkError | LoadError):
            log.exception("%s: backend %s failed", self.wanted.key, self._backend.name)
        await self._stop_runner()
        self.returning = False
        # Clients are told the reason too, and need not know where the repository lies.
        place = f"{self.wanted.version.directory}/"
        reason = str(error).replace(place, "") or type(error).__name__
        attempts, was_broken = self.attempts, self.attempts.broken
        attempts.failed(error, reason, unload_first=self.wanted.unload_first)
        self.awaited = self.awaited or attempts.starved
        await self._unavailable(attempts.failure, reselect=attempts.broken != was_broken)

    async def _serve(self) -> None:
        """READY until the runner ends or the version has to go."""
        assert self.runner is not None
        ended = await unless(self._leaving, self.runner.process.wait())
        if ended is None:
            await self._unload()
            return
        self.runner.clean_up()
        self.runner, self._endpoint = None, None
        self.attempts.failure = f"runner exited: {ended}"
        await self._unavailable(self.attempts.failure)

    async def _unload(self) -> None:
        """LOADING or READY -> gone; the requests in flight of a READY version finish first."""
        self.returning = False
        if self.harness.state is State.UNAVAILABLE:
            return
        if self.harness.state is State.READY and self.runner is not None:
            await self._drain(self.runner)
        else:
            self.harness.unload()
            await self._around.publish()
        await self._stop_runner()
        await self._unavailable("unloaded")

    async def _drain(self, runner: Runner) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._drain_seconds
        self.harness.drain()
        await self._around.publish()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._around.released(runner.key), self._drain_seconds)
        self.harness.unload()
        await self._around.publish()  # workers that still hold it end their requests now
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._around.released(runner.key), self._limits.kill_grace)
        await runner.drain(max(deadline - loop.time(), 0.0), self._limits.kill_grace)

    async def _stop_runner(self) -> None:
        if self.runner is not None:
            await self.runner.stop(self._limits.kill_grace)
        self.runner, self._endpoint = None, None

    async def _unavailable(self, reason: str, *, reselect: bool = False) -> None:
        self._around.admission.settle(self.wanted.generation)
        self.harness.unavailable(reason)
        await self._settle(reselect=reselect)

    async def _settle(self, *, reselect: bool) -> None:
        """Publish; whoever waits for this outcome finds what follows from it begun as well."""
        if reselect:
            await self._around.publish()
            await self._around.reselect()
        # Requests that have waited for it now wait for what was selected in its place.
        self.awaited = self.attempts.starved
        self.settled.set()
        await self._around.publish()
