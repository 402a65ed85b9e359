"""The provisioner: starts, watches and ends everything else, and never touches a request.

It imports no engine and maps no weights. When it dies, workers and runners serve on, and the next
`serve` with the same runtime directory takes them over.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blink_server.catalog import Catalog
from blink_server.control_server import ControlServer, first_done
from blink_server.front import Front
from blink_server.front_options import FrontOptions
from blink_server.plugins import Plugins
from blink_server.remote.door_keeper import DoorKeeper
from blink_server.remote.door_options import DoorOptions
from blink_server.repository.admin import Admin, ControlMode
from blink_server.repository.follower import RepositoryFollower
from blink_server.repository.manager import Manager
from blink_server.repository.reader import RepositoryReader
from blink_server.repository.requests import LoadRequest, LoadRequests
from blink_server.repository.settling import Settling
from blink_server.repository.surroundings import Limits
from blink_server.repository.wanted import WantedSet
from blink_server.repository.watcher import Watcher
from blink_server.runtime_dir import RuntimeDirectory, living_processes, open_runtime_directory
from blink_server.stopping import Stopping

_RUNNER_DRAIN_SECONDS = 5.0  # the workers are gone by then: only slots are left to be taken back
_CONNECT_SECONDS = 10.0
_USAGE_CHECK_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Everything that `serve` was asked for.

    `load_models`: what to load at the start in explicit mode; "*" is all. Changes are followed by
    looking every `polling_seconds`, or by the kernel's events. `settle_seconds`: how long a version
    must have been still. `door`: how frontends on other machines are let in, if they are.
    """

    repositories: Sequence[Path]
    front: FrontOptions
    runtime_directory: Path | None = None
    limits: Limits = field(default_factory=Limits)
    control: ControlMode = ControlMode.WATCH
    load_models: Sequence[str] = ()
    polling_seconds: float | None = None
    settle_seconds: float = 1.0
    door: DoorOptions | None = None


class Provisioner:
    """One server, from start to end."""

    def __init__(
        self,
        options: ServeOptions,
        plugins: Plugins,
        *,
        announce: Callable[[Provisioner], None] = lambda _: None,
    ) -> None:
        """`announce` is called once, when every version is READY or UNAVAILABLE."""
        self._options = options
        self._plugins = plugins
        self._announce = announce
        self._stopping = Stopping(self._kill)
        self._runtime: RuntimeDirectory
        self._follower: RepositoryFollower
        self._requests: LoadRequests | None
        self.wanted: WantedSet
        self.front: Front
        self.door: DoorKeeper | None = None
        self.manager: Manager
        self._catalog = Catalog()
        self._started: list[Front | DoorKeeper | Manager] = []

    async def run(self) -> None:
        """Serve until SIGTERM, SIGINT or SIGHUP; a second one ends everything at once.

        Raises BlinkError when the server cannot start or cannot go on. Nothing that it has started
        outlives the call.
        """
        self._stopping.listen()
        options = self._options
        reader = RepositoryReader(
            options.repositories,
            self._plugins,
            Settling(options.settle_seconds),
            check_seconds=options.limits.load,
        )
        explicit = options.control is ControlMode.EXPLICIT
        asked = {name: LoadRequest() for name in options.load_models}
        self._requests = LoadRequests(asked) if explicit else None
        self._follower = RepositoryFollower(reader, self._apply, self._requests)
        self.wanted = await self._follower.first()
        self._runtime = open_runtime_directory(self._options.runtime_directory)
        try:
            self.front = Front(self._options.front, self._runtime)
            self.front.claim()
            self._started.append(self.front)
            try:
                if self._options.door is not None:
                    self.door = DoorKeeper(self._options.door, self._runtime)
                    self.door.claim()
                    self._started.append(self.door)
                await self._serve()
            finally:
                self.front.close()
                if self.door is not None:
                    self.door.close()
        finally:
            self._leave_runtime_directory()
        self._stopping.confess()

    def _kill(self) -> None:
        for part in self._started:
            part.kill()

    async def _serve(self) -> None:
        self.manager = Manager(
            self._plugins.backends,
            self._catalog,
            self._runtime,
            limits=self._options.limits,
            tokenizers=self._plugins.tokenizers,
            observe=self._plugins.state_changed,
            reselect=self._follower.reselect,
        )
        self._started.append(self.manager)
        admin = Admin(
            self._options.control, self.manager, self._catalog, self._follower, self._requests
        )
        control = ControlServer(
            self._runtime.control_socket,
            on_runner=self.manager.runner_connected,
            on_worker=self._catalog.serve_worker,
            on_client=admin.serve_client,
        )
        try:
            await self.manager.inherit()
            await self.manager.apply(self.wanted)
            await control.start()
            announcement = asyncio.create_task(self._announce_when_settled())
            door = self.door.run() if self.door is not None else self._stopping.wait()
            await first_done(self._stopping.wait(), self.front.run(), door, self._follow())
            announcement.cancel()
        except BaseException:
            self._kill()
            raise
        finally:
            await self._shut_down(control)

    async def _apply(self, wanted: WantedSet) -> None:
        self.wanted = wanted
        await self.manager.apply(wanted)

    async def _follow(self) -> None:
        """Keep to what the repositories hold, if they are watched."""
        options = self._options
        if options.control is not ControlMode.WATCH:
            await self._stopping.wait()
            return
        watcher = Watcher(options.repositories, polling_seconds=options.polling_seconds)
        try:
            await asyncio.to_thread(watcher.start)
            await self._follower.run(watcher)
        finally:
            await asyncio.to_thread(watcher.close)

    async def _shut_down(self, control: ControlServer) -> None:
        """Workers first, who serve their open streams to the end; then the runners."""
        self._stopping.begin()
        await self.manager.drain()
        ending = asyncio.create_task(self._end_requests())
        await asyncio.gather(self.front.stop(), self._frontends_done())
        if self.door is not None:
            await self.door.stop()
        ending.cancel()
        await self.manager.close(_RUNNER_DRAIN_SECONDS)
        await control.close()

    async def _frontends_done(self) -> None:
        """Wait until frontends on other machines have no request in flight, within the timeout."""
        if self.door is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.front.exit_timeout_seconds + 1):
                while any((await self._catalog.usage()).values()):  # noqa: ASYNC110
                    await asyncio.sleep(_USAGE_CHECK_SECONDS)  # nobody tells when it changes

    async def _end_requests(self) -> None:
        await asyncio.sleep(self._options.front.exit_timeout_seconds)
        await self.manager.end_requests()

    async def _announce_when_settled(self) -> None:
        await self.manager.settled()
        with contextlib.suppress(TimeoutError):  # the log says what keeps a worker from it
            await asyncio.wait_for(
                self._catalog.reached(self._options.front.workers + (self.door is not None)),
                _CONNECT_SECONDS,
            )
        self._announce(self)

    def _leave_runtime_directory(self) -> None:
        if any(True for _ in living_processes(self._runtime.path)):
            self._runtime.release()  # a predecessor's, which could not be taken over
        else:
            self._runtime.close()
