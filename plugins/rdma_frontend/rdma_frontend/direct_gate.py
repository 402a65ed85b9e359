"""The gate to a ring in GPU memory: its door holds the ranges, the GPU's process the connections.

`blink_persistent.gpu_runner.direct_leases` has the lines that go between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import mmap
from collections.abc import Mapping
from typing import Any

from blink_persistent.frontend.shm import lease
from blink_persistent.ring import Ring
from blink_server.backend import Endpoint
from blink_server.errors import Unavailable
from blink_server.remote.gates import GateOptions
from rdma_frontend.offers import offer_of

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 6.0  # shorter than an agent waits for, and its frontend


class DirectGate:
    """Fulfils `Gate`."""

    def __init__(
        self,
        lines: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        answer: Mapping[str, Any],
        ranges: int,
    ) -> None:
        """`lines` are the lease's, `answer` its first one."""
        self.lost = asyncio.Event()
        self._reader, self._writer = lines
        self._offer = offer_of(answer, ranges)
        (copy,) = answer["descriptors"]
        self._copy = Ring(mmap.mmap(copy, answer["bytes"]))
        self._answers: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self._asking = asyncio.Lock()
        self._listening = asyncio.create_task(self._listen())
        self.resources = contextlib.ExitStack()

    async def offer(self) -> Mapping[str, Any]:
        """Another queue pair, and other keys."""
        renewed = await self._ask("renewed", {"type": "renew"})
        return {**self._offer, "address": renewed["address"]}

    async def connect(self, name: Mapping[str, Any]) -> Mapping[str, Any]:
        """Bring the queue pair at the GPU's process up."""
        connected: Mapping[str, Any] = (
            await self._ask("connected", {"type": "connect", "name": name})
        )["name"]
        return connected

    def in_use(self) -> int:
        """Slots that are not {submit, EMPTY}, as of the GPU's process's last look."""
        return self._copy.in_flight(self._offer["first_range"], self._offer["ranges"])

    def close(self) -> None:
        """The GPU's process sees the end of the connection, and gives the ranges on only when
        nothing of the agent's lands any more."""
        self._listening.cancel()
        self._writer.close()
        self.resources.close()

    async def _ask(self, wanted: str, line: Mapping[str, Any]) -> Mapping[str, Any]:
        async with self._asking:
            while not self._answers.empty():  # late ones
                self._answers.get_nowait()
            if self.lost.is_set():
                raise Unavailable("the GPU's process is gone")
            self._writer.write(json.dumps(line).encode() + b"\n")
            try:
                answer = await asyncio.wait_for(self._answers.get(), _ANSWER_SECONDS)
            except TimeoutError:
                raise Unavailable("the GPU's process does not answer") from None
        if answer.get("type") != wanted:
            raise Unavailable(f"the GPU's process cannot: {answer.get('reason', answer)}")
        return answer

    async def _listen(self) -> None:
        try:
            while line := await self._reader.readline():
                self._answers.put_nowait(json.loads(line))
        except (OSError, ValueError) as error:
            log.warning("the GPU's process: %s", error)
        finally:
            self.lost.set()
            self._answers.put_nowait({"reason": "it is gone"})


async def open_direct_gate(name: str, endpoint: Endpoint, options: GateOptions) -> DirectGate:
    """Lease ranges in the GPU's memory. Raises Unavailable."""
    direct = Endpoint("shm", {"socket": endpoint.address["direct"]})
    with contextlib.ExitStack() as held:
        connection, answer = await lease(
            *(f"the GPU's process of {name}", direct, held),
            ranges=options.ranges,
            device=options.device,
        )
        lines = await asyncio.open_connection(sock=connection)
        gate = DirectGate(lines, answer, options.ranges)
        gate.resources = held.pop_all()
    return gate
