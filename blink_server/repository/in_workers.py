"""Stands in for the runner of a version that the workers serve themselves: it has no process."""

from __future__ import annotations

import asyncio

from blink_server.backend import Endpoint
from blink_server.messages import EndpointKey, Ready
from blink_server.process import Exit
from blink_server.repository.wanted import WantedVersion

TRANSPORT = "workers"


class _NoProcess:
    """What a supervisor waits for: it ends when it is told to."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()

    async def wait(self) -> Exit:
        await self._ended.wait()
        return Exit(0)

    def kill(self) -> None:
        self._ended.set()


class InWorkers:
    """All calls on the provisioner's event loop; those of `RunnerProcess` that a supervisor makes.

    Its endpoint tells the state of its files: workers of a dead provisioner go on with a version
    that its successor finds as it was, and load one anew that has changed.
    """

    def __init__(self, wanted: WantedVersion, epoch: int) -> None:
        self.wanted = wanted
        self.key = EndpointKey(wanted.key.model, wanted.key.version, epoch)
        self.process = _NoProcess()

    async def loaded(self, timeout_seconds: float) -> Ready:
        """It is, at once: each worker loads it when it connects."""
        return Ready(Endpoint(TRANSPORT, {"content": self.wanted.content}), 0)

    async def drain(self, deadline_seconds: float, grace_seconds: float) -> None:
        """The workers have let go of it by then."""
        self.process.kill()

    async def stop(self, grace_seconds: float) -> Exit:
        """There is nothing to stop."""
        self.process.kill()
        return await self.process.wait()

    def clean_up(self) -> None:
        """It has left nothing."""
