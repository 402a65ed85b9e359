"""A worker's tie to one endpoint: connects to it, and again whenever the connection is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from blink_server.aside import aside
from blink_server.backend import Backend, ModelVersion, Session
from blink_server.backoff import Backoff
from blink_server.errors import BlinkError, Unavailable
from blink_server.hookspecs import TokenizerLoader, ToolFormatFactory
from blink_server.http.text_parts import TextParts, load_text_parts
from blink_server.messages import CatalogEntry
from blink_server.plugin_blame import of_plugin

log = logging.getLogger(__name__)

_FIRST_RETRY = 0.05  # seconds
_LONGEST_RETRY = 5.0


@dataclass(frozen=True, slots=True)
class Offers:
    """What the worker's plugins bring, by name."""

    backends: Mapping[str, Backend]
    tokenizers: Mapping[str, TokenizerLoader]
    tool_parsers: Mapping[str, ToolFormatFactory]
    refresh: Callable[[], None] = lambda: None  # before a version is reached for the first time
    connect_seconds: float | None = None  # how long it may take to load and reach a version


class EndpointLink:
    """All calls on the worker's event loop; `run` is its task, from first to last."""

    def __init__(
        self,
        entry: CatalogEntry,
        offers: Offers,
        *,
        changed: Callable[[EndpointLink], None],
        in_use: Callable[[], bool],
    ) -> None:
        """`changed` is called when it has become connected or has failed.

        `in_use` says whether a request holds the endpoint; `unused` is to be set when the last one
        has let go.
        """
        self.entry = entry
        self.key = entry.key
        self.text: TextParts | None = None
        self.failure = ""  # why it is not connected
        self.tried = asyncio.Event()  # connected, or failed to, once
        self.unused = asyncio.Event()
        self._offers = offers
        self._changed = changed
        self._in_use = in_use
        self._session: Session | None = None
        self._closing: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._told = ""  # the failure last logged: each is told once, not at every attempt

    @property
    def session(self) -> Session | None:
        """The session that new requests may use."""
        return None if self.failure else self._session

    async def run(self) -> None:
        """Hold a session to the endpoint until cancelled; `close` then ends it."""
        backoff = Backoff(_FIRST_RETRY, _LONGEST_RETRY)
        while True:
            await self._connect()
            self._changed(self)
            self.tried.set()
            if self._session is not None:
                backoff.reset()
                await self._lost.wait()
                if self._in_use():
                    await self.unused.wait()
                await self.close()
            if self.failure != self._told:
                log.warning("%s: %s", self.key, self.failure)
            self._told = self.failure
            await asyncio.sleep(backoff.next())

    def update(self, entry: CatalogEntry) -> None:
        """The version's settings may have changed; with another endpoint it is loaded anew."""
        moved = self.entry.endpoint != entry.endpoint
        self.entry = entry
        if moved:
            self.text = None
            if self._session is not None:
                self._on_closed(self._session, "it is served anew")
        if self._session is not None:
            try:
                self._session.configure(entry.config)
            except Exception as error:
                log.exception("%s: its session met a defect%s", self.key, of_plugin(error))

    async def close(self) -> None:
        """Close the session, if there is one, and wait until it has given back what it holds."""
        session, self._session = self._session, None
        if session is not None:
            self._closing = asyncio.create_task(self._close(session))
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _close(self, session: Session) -> None:
        try:
            await session.close()
        except Exception:
            log.exception("%s: its session cannot be closed", self.key)

    async def _connect(self) -> None:
        """Get a session, or a failure."""
        try:
            async with asyncio.timeout(self._offers.connect_seconds) as limit:
                session = await self._open()
        except BlinkError as error:
            self.failure = str(error)
        except TimeoutError as error:
            late = f"not loaded in a worker after {self._offers.connect_seconds} s"
            self.failure = late if limit.expired() else f"TimeoutError: {error}"
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            if self.failure != self._told:
                log.exception("%s: its load met a defect%s", self.key, of_plugin(error))
        else:
            # The runner may have been started before the latest settings.
            session.configure(self.entry.config)
            self._lost.clear()
            self.unused.clear()
            self._session, self.failure = session, ""
            session.on_closed(lambda reason: self._on_closed(session, reason))

    async def _open(self) -> Session:
        version, endpoint = version_of(self.entry), self.entry.endpoint
        if self.text is None:
            await aside(self._offers.refresh)
        backend = self._offers.backends.get(self.entry.backend)
        if backend is None:
            raise Unavailable(f"no plugin of this worker brings the backend {self.entry.backend!r}")
        if self.text is None:
            self.text = await aside(
                load_text_parts, version, self._offers.tokenizers, self._offers.tool_parsers
            )
        assert endpoint is not None
        return await backend.connect(version, endpoint)

    def _on_closed(self, session: Session, reason: str) -> None:
        if self._session is session:
            self.failure = reason or "the connection to the runner was lost"
            self._lost.set()
            self._changed(self)


def version_of(entry: CatalogEntry) -> ModelVersion:
    """The version that an entry of the catalog describes."""
    return ModelVersion(entry.model, entry.version, Path(entry.directory), entry.config)
