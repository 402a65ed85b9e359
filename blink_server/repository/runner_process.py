"""One start of one version's runner: its process, its control connection, what it has said."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blink_server.backend import ModelVersion
from blink_server.control import RunnerEnvironment
from blink_server.control_server import Peer
from blink_server.logs import pass_on
from blink_server.message_codec import ProtocolError
from blink_server.messages import (
    FROM_RUNNER,
    Drain,
    EndpointKey,
    Failed,
    Progress,
    Ready,
    RunnerCommand,
    Stop,
)
from blink_server.process import Exit, Process, ProcessId
from blink_server.repository.wanted import WantedVersion
from blink_server.runtime_dir import RuntimeDirectory, read_record, write_record

RECORD = "runner.json"
CONFIG = "config.json"  # the effective one: what the runner and a later server go by


class LoadError(Exception):
    """The runner cannot serve; the message is the reason."""


class LoadTimeoutError(LoadError):
    """The runner lives but is not ready in time."""


class MemoryRefusedError(LoadError):
    """There is no memory for it now."""


class RunnerProcess:
    """All calls on the provisioner's event loop. `progress` is how far it says its load is."""

    def __init__(
        self, wanted: WantedVersion, epoch: int, process: Process, directory: Path
    ) -> None:
        self.wanted = wanted
        self.key = EndpointKey(wanted.key.model, wanted.key.version, epoch)
        self.process = process
        self._directory = directory
        self._peer: Peer | None = None
        self.progress = ""
        self.registered = asyncio.Event()
        self._disconnected = asyncio.Event()
        self._disconnected.set()
        self._outcome: asyncio.Future[Ready | Failed] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(
        cls, wanted: WantedVersion, epoch: int, argv: Sequence[str], runtime: RuntimeDirectory
    ) -> RunnerProcess:
        """Start the runner in a directory of its own. Raises BlinkError; leaves nothing then."""
        directory, version = runtime.new_runner_directory(), wanted.version
        environment = RunnerEnvironment(
            control_socket=runtime.control_socket,
            model=version.model,
            version=version.version,
            epoch=epoch,
            runtime_directory=directory,
            version_directory=version.directory,
            config_file=directory / CONFIG,
        )
        try:
            environment.config_file.write_text(json.dumps(dict(version.config)), encoding="utf-8")
            process = await Process.start(
                argv,
                env={**os.environ, **environment.variables()},
                on_line=lambda line: pass_on(version.key, line),
            )
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        write_record(
            directory / RECORD,
            process.identity,
            model=version.model,
            version=version.version,
            epoch=epoch,
            content=wanted.content,
            directory=str(version.directory),
        )
        return cls(wanted, epoch, process, directory)

    @classmethod
    def take_over(cls, directory: Path) -> RunnerProcess | None:
        """The runner that a dead provisioner has left there; None, and cleaned up, if it ended."""
        found = read_record(directory / RECORD)
        if found is not None:
            with contextlib.suppress(ProcessLookupError, OSError, ValueError, KeyError, TypeError):
                return cls._recorded(directory, *found)
        shutil.rmtree(directory, ignore_errors=True)
        return None

    @classmethod
    def _recorded(
        cls, directory: Path, identity: ProcessId, facts: Mapping[str, Any]
    ) -> RunnerProcess:
        config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
        version = ModelVersion(facts["model"], facts["version"], Path(facts["directory"]), config)
        wanted = WantedVersion(version, content=facts["content"])
        return cls(wanted, facts["epoch"], Process.take_over(identity), directory)

    async def serve(self, peer: Peer) -> None:
        """Read what the runner says on one connection until it closes. Raises ProtocolError."""
        self._peer = peer
        self._disconnected.clear()
        self.registered.set()
        try:
            async for message in peer.messages(FROM_RUNNER):
                if isinstance(message, Progress):
                    self.progress = f"{message.stage} {message.fraction:.0%}"
                elif isinstance(message, Ready | Failed):
                    if not self._outcome.done():
                        self._outcome.set_result(message)
                else:
                    raise ProtocolError("registered twice")
        finally:
            if self._peer is peer:
                self._peer = None
                self._disconnected.set()

    async def loaded(self, timeout_seconds: float) -> Ready:
        """Wait until it is ready. Raises LoadError: it said so, it ended; LoadTimeoutError."""
        ended = asyncio.ensure_future(self.process.wait())
        try:
            await asyncio.wait(
                (self._outcome, ended),
                timeout=timeout_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            ended.cancel()
        if not self.process.running:
            ended_as = await self.process.wait()
            with contextlib.suppress(TimeoutError):  # its last words may still be on their way
                await asyncio.wait_for(self._disconnected.wait(), 1.0)
        if self._outcome.done():
            outcome = self._outcome.result()
            if isinstance(outcome, Ready):
                return outcome
            raise (MemoryRefusedError if outcome.memory else LoadError)(outcome.reason)
        if not self.process.running:
            raise LoadError(f"runner exited while loading: {ended_as}")
        reached = f", reached {self.progress}" if self.progress else ""
        raise LoadTimeoutError(f"not loaded after {timeout_seconds:g} s{reached}")

    async def drain(self, deadline_seconds: float, grace_seconds: float) -> None:
        """Let requests in flight finish; returns when it has exited, or after deadline plus grace.

        A runner that is still there then must be stopped.
        """
        if await self._command(Drain(deadline_seconds)):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), deadline_seconds + grace_seconds)

    async def stop(self, grace_seconds: float) -> Exit:
        """End it now, by command and by SIGTERM, or SIGKILL after `grace_seconds`."""
        await self._command(Stop())
        ended = await self.process.terminate(grace_seconds)
        self.clean_up()
        return ended

    async def _command(self, command: RunnerCommand) -> bool:
        """Whether it was sent: the runner may not be connected, or may have ended."""
        if self._peer is None or not self.process.running:
            return False
        try:
            await self._peer.send(command)
        except ConnectionError:
            return False
        return True

    def clean_up(self) -> None:
        """Remove the directory of a runner that has ended."""
        if not self.process.running:
            shutil.rmtree(self._directory, ignore_errors=True)
