"""A frontend on another machine than the models: HTTP workers and agents, and what keeps them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blink_server.catalog import Catalog
from blink_server.control_server import ControlServer, Peer, first_done
from blink_server.front import Front
from blink_server.front_options import FrontOptions
from blink_server.messages import CatalogEntry, RegisterRunner
from blink_server.plugins import Plugins
from blink_server.remote.credentials import Credentials
from blink_server.remote.host_link import HostLink
from blink_server.remote.reach import Means, Reach
from blink_server.remote.remote_catalog import RemoteCatalog
from blink_server.remote.text_cache import TextCache
from blink_server.runtime_dir import RuntimeDirectory, open_runtime_directory
from blink_server.stopping import Stopping

_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendOptions:
    """Everything that `frontend` was asked for. `device` is this machine's."""

    host: str
    port: int
    credentials: Credentials
    transport: str
    device: str
    front: FrontOptions
    cache: Path
    runtime_directory: Path | None = None


class Frontend:
    """One frontend, from start to end."""

    def __init__(
        self,
        options: FrontendOptions,
        plugins: Plugins,
        *,
        announce: Callable[[Frontend], None] = lambda _: None,
    ) -> None:
        """`announce` is called once, when every endpoint of the host's was reached for."""
        self._options = options
        self._plugins = plugins
        self._announce = announce
        self._stopping = Stopping(lambda: self.front.kill())
        self._catalog = Catalog()
        self._remote: RemoteCatalog
        self.front: Front

    @property
    def models(self) -> tuple[CatalogEntry, ...]:
        """What workers here know of."""
        update = self._catalog.current
        return update.models if update is not None else ()

    async def run(self) -> None:
        """Serve until SIGTERM, SIGINT or SIGHUP; a second one ends everything at once.

        Raises BlinkError when it cannot start or cannot go on.
        """
        self._stopping.listen()
        runtime = open_runtime_directory(self._options.runtime_directory)
        try:
            self.front = Front(self._options.front, runtime)
            self.front.claim()
            try:
                await self._serve(runtime)
            finally:
                self.front.close()
        finally:
            runtime.close()
        self._stopping.confess()

    async def _serve(self, runtime: RuntimeDirectory) -> None:
        self._remote = self._reach_host(runtime.path)
        control = ControlServer(
            runtime.control_socket,
            on_runner=_no_runner,
            on_worker=self._catalog.serve_worker,
        )
        await control.start()
        following = asyncio.create_task(self._remote.run())
        announcing = asyncio.create_task(self._announce_when_settled())
        try:
            await first_done(self._stopping.wait(), self.front.run())
        except BaseException:
            self.front.kill()
            raise
        finally:
            announcing.cancel()
            await self._shut_down(following, control)

    def _reach_host(self, directory: Path) -> RemoteCatalog:
        options = self._options
        name = f"{socket.gethostname()}:{self.front.address[1]}"
        host = HostLink(options.host, options.port, options.credentials, name)
        means = Means(
            host=host,
            cache=TextCache(options.cache, host),
            backends=self._plugins.backends,
            tokenizers=self._plugins.tokenizers,
            transport=options.transport,
            device=options.device,
            ranges=options.front.workers,
        )

        def make_reach(entry: CatalogEntry, place: Path, changed: Callable[[], None]) -> Reach:
            return Reach(entry, means, place, changed)

        return RemoteCatalog(host, self._catalog, make_reach, directory)

    async def _shut_down(self, following: asyncio.Task[None], control: ControlServer) -> None:
        """Workers first, who serve their open streams to the end; then the agents."""
        await self._remote.end(requests=False)
        ending = asyncio.create_task(self._end_requests())
        await self.front.stop()
        ending.cancel()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await self._remote.close()
        await control.close()

    async def _end_requests(self) -> None:
        await asyncio.sleep(self._options.front.exit_timeout_seconds)
        await self._remote.end(requests=True)

    async def _announce_when_settled(self) -> None:
        await self._remote.caught_up()
        with contextlib.suppress(TimeoutError):  # the log says what keeps a worker from it
            await asyncio.wait_for(
                self._catalog.reached(self._options.front.workers), _CONNECT_SECONDS
            )
        self._announce(self)


async def _no_runner(peer: Peer, _registration: RegisterRunner) -> None:
    peer.close()
