"""One endpoint of the host's, reached: its text fetched, its agent running."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from blink_server.backend import Endpoint
from blink_server.backoff import Backoff
from blink_server.control_server import first_done
from blink_server.errors import BlinkError, EngineFailure, Unavailable
from blink_server.hookspecs import TokenizerLoader
from blink_server.message_codec import MAX_LINE
from blink_server.messages import CatalogEntry
from blink_server.process import Process
from blink_server.remote.gate_link import GateLink
from blink_server.remote.gates import RemoteBackend
from blink_server.remote.host_link import HostLink
from blink_server.remote.messages import Attach
from blink_server.remote.text_cache import TextCache

log = logging.getLogger(__name__)

_FIRST_RETRY = 0.2  # seconds
_LONGEST_RETRY = 5.0
_AGENT_GRACE = 5.0


@dataclass(frozen=True, slots=True)
class Means:
    """What a frontend reaches endpoints with. `device` is this machine's, `ranges` are as many as
    there are workers."""

    host: HostLink
    cache: TextCache
    backends: Mapping[str, object]
    tokenizers: Mapping[str, TokenizerLoader]
    transport: str
    device: str
    ranges: int


class Reach:
    """All calls on one event loop; `run` is its task, from first to last."""

    def __init__(
        self, entry: CatalogEntry, means: Means, directory: Path, changed: Callable[[], None]
    ) -> None:
        """`directory` is its own, private; `changed` is called at every change of the three."""
        self.entry = entry
        self.files: Path | None = None
        """Where the files that text needs are."""
        self.endpoint: Endpoint | None = None
        """Where workers may connect, from the first agent's start on."""
        self.failure = ""
        self._means = means
        self._runner_socket = directory / "runner.sock"
        self._agent_socket = directory / "ring.sock"
        self._changed = changed
        self.tried = asyncio.Event()
        """It has succeeded, or failed, once."""

    async def run(self) -> None:
        """Keep an agent at the endpoint until cancelled."""
        backoff = Backoff(_FIRST_RETRY, _LONGEST_RETRY)
        told, clock = "", asyncio.get_running_loop().time
        while True:
            begun = clock()
            try:
                await self._serve()
                reason = "its agent has ended"
            except (BlinkError, OSError) as error:
                reason = str(error)
            if self.endpoint is None:
                self._fail(reason)
            if reason != told:
                log.warning("%s: %s; trying again", self.entry.key, reason)
            told = reason
            await asyncio.sleep(backoff.next(clock() - begun))

    async def _serve(self) -> None:
        """Serve by one agent, to its end. Raises BlinkError, OSError.

        It is not started where the host gives no ranges: it could only end again.
        """
        means, key = self._means, self.entry.key
        backend = means.backends.get(self.entry.backend)
        if not isinstance(backend, RemoteBackend):
            raise Unavailable(f"no plugin here reaches the backend {self.entry.backend!r} remotely")
        tokenizer = self.entry.config["tokenizer"]["name"]
        if tokenizer not in means.tokenizers:
            raise Unavailable(f"no plugin here brings the tokenizer {tokenizer!r}")
        self.files = await means.cache.directory_with(self.entry.files)
        place = (key.model, key.version, key.epoch, means.ranges, backend.ring_layout)
        gate = GateLink(means.host, Attach(means.transport, *place))
        await gate.open()
        try:
            await self._serve_at(gate, backend)
        finally:
            await gate.close()

    async def _serve_at(self, gate: GateLink, backend: RemoteBackend) -> None:
        offering = _Offering(gate, backend.ring_layout, self._means.device)
        self._runner_socket.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(
            offering.serve, str(self._runner_socket), limit=MAX_LINE
        )
        command = backend.agent_command(str(self._runner_socket), str(self._agent_socket))
        process = await Process.start(command, env=os.environ, on_line=self._hear)
        try:
            await first_done(_ended(process), gate.keep())
        finally:
            server.close()
            offering.hang_up()  # an agent that waits for an answer would not hear of the signal
            await process.terminate(_AGENT_GRACE)

    def _hear(self, line: str) -> None:
        """A line of the agent's output."""
        try:
            serving = json.loads(line)["type"] == "serving"
        except (ValueError, KeyError, TypeError):
            log.info("agent of %s: %s", self.entry.key, line)
            return
        if serving:
            self.endpoint, self.failure = Endpoint("shm", {"socket": str(self._agent_socket)}), ""
            self.tried.set()
            self._changed()

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self.tried.set()
        self._changed()


class _Offering:
    """What an agent finds at its runner's socket: the gate's offer, with this machine's device."""

    def __init__(self, gate: GateLink, layout: str, device: str) -> None:
        self._gate = gate
        self._layout = layout
        self._device = device
        self._talks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One agent, from its first line to its last."""
        talk = asyncio.current_task()
        assert talk is not None
        self._talks.add(talk)
        try:
            while line := await reader.readline():
                answer = await self._answer(json.loads(line))
                if answer is not None:
                    writer.write(json.dumps(answer).encode() + b"\n")
        except (OSError, ValueError) as error:
            log.warning("an agent said something unreadable: %s", error)
        except asyncio.CancelledError:
            pass  # only `hang_up` cancels; asyncio would report the task as failed
        finally:
            writer.close()
            self._talks.discard(talk)

    def hang_up(self) -> None:
        """End the agent's connection: it ends then."""
        for talk in self._talks:
            talk.cancel()

    async def _answer(self, said: Mapping[str, object]) -> Mapping[str, object] | None:
        if said.get("type") == "detach":
            return None
        if said.get("type") == "attach" and (theirs := said.get("layout_hash")) != self._layout:
            reason = f"ring layout {self._layout} here differs from the agent's {theirs}"
            return {"type": "refused", "reason": reason}
        answer = dict(await self._gate.ask(said))
        if answer.get("type") == "attached":
            answer["address"] = {**answer["address"], "device": self._device}
        return answer


async def _ended(process: Process) -> None:
    ended = await process.wait()
    raise EngineFailure(f"its agent ended: {ended}")
