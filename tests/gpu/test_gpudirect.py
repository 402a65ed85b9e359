"""A ring in GPU memory reached through a network card, both ends of the connection on one machine.

Needs a card that reaches the GPU's memory (a ConnectX or a BlueField) and pyverbs, beside the GPU.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from blink_persistent.agent.port import PortLost, Region, Span
from blink_persistent.agent.relay import Relay
from blink_persistent.gpu.device_ring import DeviceRing
from blink_persistent.gpu.device_scheduler import DeviceScheduler
from blink_persistent.gpu_runner.direct_leases import DirectLeases
from blink_persistent.gpu_runner.residents import Residents
from blink_persistent.ring import LAYOUT_HASH, SlotState
from blink_persistent.testing.device_harness import DeviceHarness, LaunchableEngine
from blink_persistent.testing.plain_frontend import PlainFrontend
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.backend import Endpoint
from blink_server.errors import Unavailable
from blink_server.remote.gates import Gate, GateOptions
from rdma_frontend.device import Device
from rdma_frontend.gate import open_gate
from rdma_frontend.port import RdmaPort

pytestmark = pytest.mark.gpu

SHAPE = ScriptedShape(
    ranges=3, max_rows=32, max_sequences=4, context_length=640, block_count=32 * 160 + 1, epoch=5
)
REQUESTS = 32


class UnpinnedHarness(DeviceHarness):
    """With the ring as `DeviceService` has it."""

    def _make_scheduler(self, engine: LaunchableEngine, *_: int) -> None:
        self.ring = DeviceRing(self.gpu, self.shape.ring(), self.shape.epoch, pinned=False)
        self.scheduler = DeviceScheduler(self.gpu, self.ring, engine.tables, engine.graphs)


class Machine:
    """A GPU's process in this one, and a door."""

    def __init__(self, harness: UnpinnedHarness, card: str, directory: Path) -> None:
        self.harness, self.card = harness, card
        self.residents = Residents()
        self.residents.add(harness.scheduler, step_seconds=1.0)  # type: ignore[arg-type]
        assert isinstance(harness.ring, DeviceRing)
        self.ring = harness.ring
        self.socket = directory / "direct.sock"
        leases = DirectLeases.open(
            *("m:1", harness.gpu, self.ring),
            host_ranges=1,
            socket_path=self.socket,
            limits={},
            still=self.still,
        )
        assert leases is not None, "no card can reach this GPU's memory; the log says why"
        self.leases = leases
        self.leases.start()

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        self.harness.gpu.make_current()
        with self.residents.exclusive():
            yield

    def look(self) -> None:
        with self.residents.running():
            self.leases.look()

    async def gate(self) -> Gate:
        endpoint = Endpoint("shm", {"socket": "none", "direct": str(self.socket)})
        return await open_gate("m:1", endpoint, GateOptions(self.card, 2, f"{LAYOUT_HASH:016x}"))

    async def port(self, gate: Gate) -> RdmaPort:
        offer, loop = await gate.offer(), asyncio.get_running_loop()

        def connect(name: Mapping[str, Any]) -> Mapping[str, Any]:
            return asyncio.run_coroutine_threadsafe(gate.connect(name), loop).result()

        return await asyncio.to_thread(
            lambda: RdmaPort(Device(self.card), offer["address"], connect, first_range=1, ranges=2)
        )


@pytest.fixture(scope="session")
def card() -> str:
    """The first card; skips by name where there is none."""
    try:
        from pyverbs.device import get_device_list
        from pyverbs.pyverbs_error import PyverbsError
    except ImportError as missing:
        pytest.skip(f"no pyverbs: {missing}")
    try:
        names = [device.name.decode() for device in get_device_list()]
    except PyverbsError as error:
        pytest.skip(f"no RDMA device: {error}")
    for name in names:
        with contextlib.suppress(Unavailable):
            Device(name).close()
            return str(name)
    pytest.skip(f"no RDMA device with RoCE v2 among {names}")


@pytest.fixture
def machine(card: str, short_path: Path) -> Iterator[Machine]:
    with UnpinnedHarness(SHAPE, step_ns=100_000) as harness:
        machine = Machine(harness, card, short_path)
        yield machine
        machine.leases.close()
        machine.residents.remove(harness.scheduler)  # type: ignore[arg-type]
        machine.ring.close()


async def test_answers_come_from_the_gpu_without_the_host(machine: Machine) -> None:
    gate = await machine.gate()
    relay = Relay(await machine.port(gate), lambda _range: None)
    workers = PlainFrontend(relay.mirror.ring, SHAPE)
    asked = [
        ScriptedRequest(prompt=(3 + n, 5), max_tokens=200, ignore_eos=True) for n in range(REQUESTS)
    ]
    for slot, request in enumerate(asked):
        workers.submit(slot, request)
    for slot, request in enumerate(asked):
        while (s := workers.accepted(slot)) is None or s.state is not SlotState.DECODE_COMPLETED:
            relay.turn()
        assert workers.output(slot) == request.answer(SHAPE).tokens
    relay.close()
    gate.close()


async def test_slots_of_a_dead_agent_are_taken_back(machine: Machine) -> None:
    gate = await machine.gate()
    port = await machine.port(gate)
    relay = Relay(port, lambda _range: None)
    workers = PlainFrontend(relay.mirror.ring, SHAPE)
    for slot in range(REQUESTS):
        workers.submit(slot, ScriptedRequest(prompt=(3,), max_tokens=600, ignore_eos=True))
    relay.turn()
    gate.close()
    asked = asyncio.create_task(machine.gate())
    while not asked.done():
        machine.look()
        await asyncio.sleep(0)
    assert asked.result().in_use() == 0
    with pytest.raises(PortLost):
        port.read([Span(Region.STATUS, 0, 16)])
    asked.result().close()
    relay.disconnect()
    relay.close()
