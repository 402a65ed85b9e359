"""One generation's life: load its runner, watch it, start it again when it dies, let it go.

Drives the generation's `Harness` and owns its `RunnerProcess`. Every change is published before
this goes on, so that workers never learn of a READY version late or of a dead one never.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from blink_server.backend import Backend, Endpoint, ModelVersion
from blink_server.errors import BlinkError
from blink_server.hookspecs import TokenizerLoader
from blink_server.messages import CatalogEntry, Ready
from blink_server.model_events import ModelStateChange
from blink_server.repository.admission import Admission
from blink_server.repository.harness import Harness, State
from blink_server.repository.runner_process import (
    LoadError,
    LoadTimeoutError,
    MemoryRefusedError,
    RunnerProcess,
)
from blink_server.repository.wanted import WantedVersion
from blink_server.repository.warm_up import warm_up
from blink_server.runtime_dir import RuntimeDirectory

log = logging.getLogger(__name__)

T = TypeVar("T")

_TAKE_OVER_SECONDS = 10.0  # a living runner registers again within a second or two


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds: how long a load may take, the restart back-off, how long an end may take.

    A runner that has served for `healthy` starts the back-off afresh. `drain`: how long requests
    in flight of a version that is unloaded may go on. `parallel_loads` load at a time.
    """

    load: float = 600.0
    first_retry: float = 1.0
    longest_retry: float = 60.0
    healthy: float = 60.0
    kill_grace: float = 5.0
    drain: float = 300.0
    parallel_loads: int = 4


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the supervisors of one server share.

    `loading` is held during a load; `tokenizers` are the plugins'. `publish` tells the workers what
    has changed, `observe` the plugins; `released` waits until no worker holds that runner's
    endpoint; `threads` tells the CPU threads that a version may have, if it is loaded now.
    """

    runtime: RuntimeDirectory
    admission: Admission
    limits: Limits
    loading: asyncio.Semaphore
    tokenizers: Mapping[str, TokenizerLoader]
    publish: Callable[[], Awaitable[None]]
    observe: Callable[[ModelStateChange], None]
    released: Callable[[RunnerProcess], Awaitable[None]]
    threads: Callable[[ModelVersion], int]


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
    ) -> None:
        """`inherited` is a runner that a dead predecessor has left."""
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
        self.runner: RunnerProcess | None = inherited
        self.returning = inherited is not None  # it has still to register with this server
        self.settled = asyncio.Event()  # READY or UNAVAILABLE once
        self.proven = inherited is not None  # has been READY
        self.starved = False  # not loaded for lack of memory that what serves now has
        self.awaited = False  # what served has made way for it: requests wait
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
        version = self.wanted.version
        ready = self.harness.state is State.READY
        return CatalogEntry(
            model=version.model,
            version=version.version,
            epoch=self.harness.epoch,
            state=str(self.harness.state),
            reason=self.harness.reason,
            directory=str(version.directory),
            config=version.config,
            aliases=self.wanted.aliases,
            backend=self._backend.name,
            endpoint=self._endpoint if ready else None,
            awaited=self.awaited,
            load_seconds=self.load_seconds,
        )

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
        seconds = self._limits.first_retry
        while not self._leaving.is_set():
            self._retry.clear()
            served = await self._load_and_serve()
            if served >= self._limits.healthy:
                seconds = self._limits.first_retry
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._unless_leaving(self._retry.wait())
            seconds = min(2 * seconds, self._limits.longest_retry)
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
        self.harness.ready()
        await self._settle()
        await self._serve()
        return loop.time() - started - self.load_seconds

    async def _load(self) -> Ready | None:
        """The loaded runner's word; None when the version has to go before it is loaded."""
        if self.returning:
            assert self.runner is not None
            await self._begin_load(self.runner.key.epoch)
            return await self._unless_leaving(self._returned(self.runner))
        if not await self._unless_leaving(self._around.loading.acquire()):
            return None
        try:
            await self._begin_load(self._next_epoch())
            self.runner = await self._start_runner()
            return await self._unless_leaving(self._warmed_up(self.runner))
        finally:
            self._around.loading.release()

    async def _begin_load(self, epoch: int) -> None:
        self.starved = False
        self.harness.load(epoch)
        await self._around.publish()

    async def _start_runner(self) -> RunnerProcess:
        version, generation = self.wanted.version, self.wanted.generation
        if refusal := self._around.admission.admit(generation, self._backend.estimate(version)):
            raise MemoryRefusedError(refusal)
        argv = self._backend.runner_command(version, threads=self._around.threads(version))
        return await RunnerProcess.start(
            self.wanted, self.harness.epoch, argv, self._around.runtime
        )

    async def _warmed_up(self, runner: RunnerProcess) -> Ready:
        began = asyncio.get_running_loop().time()
        ready = await runner.loaded(self._limits.load)
        left = began + self._limits.load - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(left):
                await warm_up(
                    self.wanted.version, ready.endpoint, self._backend, self._around.tokenizers
                )
        except TimeoutError:
            raise LoadTimeoutError(f"not warmed up after {self._limits.load:g} s") from None
        return ready

    async def _returned(self, runner: RunnerProcess) -> Ready:
        """What an inherited runner says when it has found this server."""
        try:
            return await runner.loaded(_TAKE_OVER_SECONDS)
        except LoadTimeoutError:
            if not runner.registered.is_set():
                raise LoadError("the server before left a runner that is silent") from None
        self.returning = False
        await self._around.publish()
        return await runner.loaded(self._limits.load)

    async def _load_failed(self, error: Exception) -> None:
        if not isinstance(error, BlinkError | LoadError):
            log.exception("%s: backend %s failed", self.wanted.key, self._backend.name)
        await self._stop_runner()
        self.returning = False
        self.starved = isinstance(error, MemoryRefusedError) and self.wanted.unload_first
        self.awaited = self.starved
        # Clients are told the reason too, and need not know where the repository lies.
        place = f"{self.wanted.version.directory}/"
        await self._unavailable(str(error).replace(place, "") or type(error).__name__)

    async def _unless_leaving(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`, or None, with `work` cancelled, once the version has to go."""
        task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(self._leaving.wait())
        try:
            await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            task.cancel()
            raise
        finally:
            leaving.cancel()
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None

    async def _serve(self) -> None:
        """READY until the runner ends or the version has to go."""
        assert self.runner is not None
        ended = await self._unless_leaving(self.runner.process.wait())
        if ended is None:
            await self._unload()
            return
        self.runner.clean_up()
        self.runner, self._endpoint = None, None
        await self._unavailable(f"runner exited: {ended}")

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

    async def _drain(self, runner: RunnerProcess) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._drain_seconds
        self.harness.drain()
        await self._around.publish()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._around.released(runner), self._drain_seconds)
        self.harness.unload()
        await self._around.publish()  # workers that still hold it end their requests now
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._around.released(runner), self._limits.kill_grace)
        await runner.drain(max(deadline - loop.time(), 0.0), self._limits.kill_grace)

    async def _stop_runner(self) -> None:
        if self.runner is not None:
            await self.runner.stop(self._limits.kill_grace)
        self.runner, self._endpoint = None, None

    async def _unavailable(self, reason: str) -> None:
        self._around.admission.settle(self.wanted.generation)
        self.harness.unavailable(reason)
        await self._settle()

    async def _settle(self) -> None:
        self.settled.set()
        await self._around.publish()
