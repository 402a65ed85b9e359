"""The worker's side of the catalog: connects to what is READY and lets go of what is retired.

For every endpoint in the catalog there is one `_Link`, made when the endpoint appears and dropped
when it has left the catalog and no request of this worker holds it; the provisioner is then told.
Without a provisioner the last catalog stays in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from blink_server.backend import Backend, ModelVersion, Session
from blink_server.errors import BlinkError, Unavailable
from blink_server.hookspecs import Factory, TokenizerLoader
from blink_server.http.models import (
    ModelDirectory,
    ModelEntry,
    ServerState,
    TextParts,
    load_text_parts,
)
from blink_server.message_codec import MAX_LINE, decode, encode
from blink_server.messages import (
    TO_WORKER,
    CatalogEntry,
    CatalogUpdate,
    Connected,
    EndpointKey,
    Message,
    RegisterWorker,
    Released,
)
from blink_server.repository.harness import State

log = logging.getLogger(__name__)

_FIRST_RETRY = 0.05  # seconds
_LONGEST_RETRY = 1.0
_LONGEST_CONNECT_RETRY = 5.0
_CLOSE_SECONDS = 5.0


class _Link:
    """This worker's tie to one endpoint."""

    def __init__(self, entry: CatalogEntry) -> None:
        self.key = entry.key
        self.session: Session | None = None
        self.text: TextParts | None = None
        self.failure = ""  # why there is no session
        self.told = ""  # the failure last logged: each is told once, not at every attempt
        self.tried = asyncio.Event()  # connected, or failed to, once
        self.lost = asyncio.Event()  # the session's other side is gone
        self.unused = asyncio.Event()  # and no request holds it any more
        self.task: asyncio.Task[None] | None = None


class CatalogFollower:
    """Keeps a `ModelDirectory` true to the catalog; all calls on the worker's event loop."""

    def __init__(
        self,
        control_socket: Path,
        directory: ModelDirectory,
        backends: Mapping[str, Backend],
        tokenizers: Mapping[str, TokenizerLoader],
        tool_parsers: Mapping[str, Factory],
    ) -> None:
        self._control_socket = control_socket
        self._directory = directory
        self._backends = backends
        self._tokenizers = tokenizers
        self._tool_parsers = tool_parsers
        self._update: CatalogUpdate | None = None
        self._updated = asyncio.Event()
        self._links: dict[EndpointKey, _Link] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        directory.on_released(self._last_lease_ended)

    async def run(self) -> None:
        """Follow until cancelled; connect again whenever the provisioner has gone."""
        retry = _FIRST_RETRY
        while True:
            try:
                reader, self._writer = await asyncio.open_unix_connection(
                    str(self._control_socket), limit=MAX_LINE
                )
                self._send(RegisterWorker(os.getpid(), tuple(self._links)))
                while line := await reader.readline():
                    update = decode(line, TO_WORKER)
                    assert isinstance(update, CatalogUpdate)
                    retry = _FIRST_RETRY
                    self._apply(update)
            except (OSError, ValueError, BlinkError) as error:
                log.debug("catalog: %s", error)
            finally:
                if self._writer is not None:
                    self._writer.close()
                    self._writer = None
            await asyncio.sleep(retry)
            retry = min(2 * retry, _LONGEST_RETRY)

    async def caught_up(self) -> None:
        """Wait for the first catalog, and for one attempt to reach each endpoint in it."""
        await self._updated.wait()
        for link in list(self._links.values()):
            await link.tried.wait()

    async def close(self) -> None:
        """Close every session, which gives its slots back; waits a few seconds at most."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            if link.task is not None:
                link.task.cancel()
        sessions = [link.session.close() for link in links if link.session is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.gather(*sessions, *self._tasks, return_exceptions=True)

    def _apply(self, update: CatalogUpdate) -> None:
        self._update = update
        self._updated.set()
        offered = {entry.key: entry for entry in update.models if entry.endpoint is not None}
        for key, entry in offered.items():
            if key not in self._links:
                link = self._links[key] = _Link(entry)
                link.task = self._spawn(self._keep_connected(link, entry))
        self._publish()
        for key, link in list(self._links.items()):
            if key not in offered:
                self._retire(link)

    def _retire(self, link: _Link) -> None:
        """Stop connecting; with requests in flight the rest waits for the last of them."""
        if link.task is not None:
            link.task.cancel()
        if not self._directory.leases(link.key):
            self._drop(link)

    def _last_lease_ended(self, key: EndpointKey) -> None:
        link = self._links.get(key)
        if link is not None:
            link.unused.set()
            if not self._offered(key):
                self._drop(link)

    def _drop(self, link: _Link) -> None:
        if self._links.pop(link.key, None) is link:
            link.tried.set()
            self._spawn(self._release(link))

    async def _release(self, link: _Link) -> None:
        if link.task is not None:
            link.task.cancel()
            await asyncio.gather(link.task, return_exceptions=True)
        await _close(link)
        self._send(Released(link.key.model, link.key.version, link.key.epoch))

    async def _keep_connected(self, link: _Link, entry: CatalogEntry) -> None:
        """Hold a session to the endpoint while it is in the catalog."""
        retry = _FIRST_RETRY
        while True:
            try:
                await self._connect(link, entry)
            except BlinkError as error:
                link.failure = str(error)
            except Exception as error:
                link.failure = f"{type(error).__name__}: {error}"
                if link.failure != link.told:
                    log.exception("%s: backend %s has a defect", link.key, entry.backend)
            self._publish()
            link.tried.set()
            if link.session is not None:
                retry = _FIRST_RETRY
                self._send(Connected(link.key.model, link.key.version, link.key.epoch))
                await link.lost.wait()
                if self._directory.leases(link.key):
                    await link.unused.wait()
                await asyncio.shield(self._spawn(_close(link)))
            if link.failure != link.told:
                log.warning("%s: %s", link.key, link.failure)
            link.told = link.failure
            await asyncio.sleep(retry)
            retry = min(2 * retry, _LONGEST_CONNECT_RETRY)

    async def _connect(self, link: _Link, entry: CatalogEntry) -> None:
        version = _version(entry)
        backend = self._backends.get(entry.backend)
        if backend is None:
            raise Unavailable(f"no plugin of this worker brings the backend {entry.backend!r}")
        if link.text is None:
            link.text = await asyncio.to_thread(
                load_text_parts, version, self._tokenizers, self._tool_parsers
            )
        assert entry.endpoint is not None
        session = await backend.connect(version, entry.endpoint)
        link.lost.clear()
        link.unused.clear()
        link.session, link.failure = session, ""

        def closed(reason: str) -> None:
            if link.session is session:
                link.failure = reason
                link.lost.set()
                self._publish()

        session.on_closed(closed)

    def _publish(self) -> None:
        if self._update is not None:
            entries = [self._entry(entry) for entry in self._update.models]
            self._directory.publish(entries, server=ServerState(self._update.server))

    def _entry(self, entry: CatalogEntry) -> ModelEntry:
        state, reason = State(entry.state), entry.reason
        link = self._links.get(entry.key) if entry.endpoint is not None else None
        connected = link is not None and link.session is not None and not link.failure
        if link is not None and link.failure:
            state, reason = State.UNAVAILABLE, link.failure
        return ModelEntry(
            version=_version(entry),
            epoch=entry.epoch,
            state=state,
            reason=reason,
            aliases=entry.aliases,
            session=link.session if link is not None and connected else None,
            text=link.text if link is not None and connected else None,
            created=_created(entry),
        )

    def _offered(self, key: EndpointKey) -> bool:
        models = self._update.models if self._update is not None else ()
        return any(entry.key == key and entry.endpoint is not None for entry in models)

    def _send(self, message: Message) -> None:
        # Small and rare: what the provisioner is slow to read stays in the transport's buffer.
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(message))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _close(link: _Link) -> None:
    session, link.session = link.session, None
    if session is not None:
        try:
            await session.close()
        except Exception:
            log.exception("%s: its session cannot be closed", link.key)


def _version(entry: CatalogEntry) -> ModelVersion:
    return ModelVersion(entry.model, entry.version, Path(entry.directory), entry.config)


def _created(entry: CatalogEntry) -> int:
    try:
        return int(Path(entry.directory).stat().st_mtime)
    except OSError:
        return 0
