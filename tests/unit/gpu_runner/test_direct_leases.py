"""Ranges in GPU memory that agents elsewhere reach: ring, leases, gate and agent are real, CUDA
and verbs are not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from blink_persistent.agent.port import PortLost, Region, Span
from blink_persistent.agent.relay import Relay
from blink_persistent.gpu_runner.direct_leases import DirectLeases
from blink_persistent.ring import LAYOUT_HASH
from blink_persistent.testing.memory_gpu import DMA_BUF, ORDERING, MemoryGpu
from blink_persistent.testing.plain_frontend import PlainFrontend
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.backend import Endpoint
from blink_server.errors import Unavailable
from blink_server.remote.gates import Gate, GateOptions
from rdma_frontend.device import Device
from rdma_frontend.gate import open_gate
from rdma_frontend.port import RdmaPort
from rdma_frontend.testing.fake_verbs import FakeVerbs, use_fake_verbs

SHAPE = ScriptedShape(ranges=3, max_rows=8, epoch=5)
HOST_RANGES = 1
LIMITS = {"max_queue": 30, "context_length": SHAPE.context_length}
STATUS = [Span(Region.STATUS, 0, 16)]
ENDLESS = ScriptedRequest(prompt=(3, 4), max_tokens=90, ignore_eos=True)


class Machine:
    """A GPU's process, and a door beside it."""

    def __init__(self, fake: FakeVerbs, harness: ScriptedHarness, directory: Path) -> None:
        self.fake, self.harness = fake, harness
        self.gpu = MemoryGpu(harness.ring_fd)
        self.ring = self.gpu.ring(harness)
        self.socket = directory / "direct.sock"
        self.leases: DirectLeases | None = None

    def open(self, host_ranges: int | None = HOST_RANGES) -> DirectLeases | None:
        self.leases = DirectLeases.open(
            *("m:1", self.gpu, self.ring),  # type: ignore[arg-type]
            host_ranges=host_ranges,
            socket_path=self.socket,
            limits=LIMITS,
            still=nullcontext,
        )
        if self.leases is not None:
            self.leases.start()
        return self.leases

    async def gate(self, ranges: int = 1, device: str = "mlx5_0") -> Gate:
        endpoint = Endpoint("shm", {"socket": "the agent's", "direct": str(self.socket)})
        return await open_gate(
            "m:1:5", endpoint, GateOptions(device, ranges, f"{LAYOUT_HASH:016x}")
        )

    async def port(self, gate: Gate) -> RdmaPort:
        """The agent's, on another machine."""
        offer, loop = await gate.offer(), asyncio.get_running_loop()

        def connect(name: Mapping[str, Any]) -> Mapping[str, Any]:
            return asyncio.run_coroutine_threadsafe(gate.connect(name), loop).result()

        def make() -> RdmaPort:
            parts = {"first_range": offer["first_range"], "ranges": offer["ranges"]}
            return RdmaPort(Device("dpu"), offer["address"], connect, **parts)

        return await asyncio.to_thread(make)

    async def given_back(self, *ranges: int) -> None:
        """Return when somebody else can have as many ranges as these."""
        asked = asyncio.create_task(self.gate(len(ranges)))
        assert self.leases is not None
        while not asked.done():
            self.leases.look()
            self.harness.settle()
            await asyncio.sleep(0)
        gate = asked.result()
        assert (await gate.offer())["first_range"] == ranges[0]
        gate.close()


@pytest.fixture
def machine(short_path: Path) -> Iterator[Machine]:
    with use_fake_verbs() as fake, ScriptedHarness(SHAPE) as harness:
        machine = Machine(fake, harness, short_path)
        yield machine
        if machine.leases is not None:
            machine.leases.close()
        machine.ring.close()


@contextlib.asynccontextmanager
async def gate_to(machine: Machine, ranges: int = 1) -> AsyncIterator[Gate]:
    gate = await machine.gate(ranges)
    yield gate
    gate.close()


@pytest.mark.parametrize("ordering", [100, 200])
async def test_an_agent_is_served_in_the_gpus_memory(machine: Machine, ordering: int) -> None:
    machine.gpu.attributes[ORDERING] = ordering
    leases = machine.open()
    assert leases is not None
    async with gate_to(machine, 2) as gate:
        port = await machine.port(gate)
        assert (port.first_range, port.ranges, port.all_ranges) == (HOST_RANGES, 2, 3)
        relay = Relay(port, lambda _range: None)
        workers = PlainFrontend(relay.mirror.ring, SHAPE)
        asked = [ScriptedRequest(prompt=(3 + n,), max_tokens=4) for n in range(20)]
        for slot, request in enumerate(asked):
            workers.submit(slot, request)
        relay.turn()
        leases.look()
        assert gate.in_use() == len(asked)
        machine.harness.settle()
        relay.turn()
        for slot, request in enumerate(asked):
            assert workers.accepted(slot) is not None
            assert workers.output(slot) == request.answer(SHAPE).tokens
        relay.close()


async def test_without_dma_buf_regions_are_by_nvidia_peermem(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine.gpu.attributes[DMA_BUF] = 0
    (tmp_path / "nvidia_peermem").mkdir()
    monkeypatch.setattr("blink_persistent.gpu.direct._MODULES", tmp_path)
    machine.open()
    async with gate_to(machine) as gate:
        regions = (await gate.offer())["address"]["regions"]
        assert regions["HEADER"][0] == machine.ring.address
        port = await machine.port(gate)
        assert port.epoch == SHAPE.epoch
        port.close()


async def test_what_neither_way_reaches_is_refused_by_both_names(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.open()
    async with gate_to(machine) as gate:

        def refuse(*_: object, **__: object) -> None:
            raise machine.fake.PyverbsError("Operation not supported")

        monkeypatch.setattr(machine.fake, "DmaBufMR", refuse)
        monkeypatch.setattr(machine.fake, "MR", refuse)
        with pytest.raises(Unavailable, match=r"dma-buf, .* open kernel .* modprobe nvidia-peerm"):
            await gate.offer()
    with pytest.raises(Unavailable, match="cannot register"):
        await machine.gate()


@pytest.mark.parametrize(
    ("attributes", "host_ranges", "complaint"),
    [
        ({ORDERING: 0}, 1, "no order"),
        ({DMA_BUF: 0}, 1, "nvidia-peermem is not loaded"),
        ({}, 3, "its workers need 3 of its 3 ranges"),
        ({}, None, ""),
    ],
)
def test_else_frontends_go_through_the_hosts_agent(
    machine: Machine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    attributes: dict[str, int],
    host_ranges: int | None,
    complaint: str,
) -> None:
    monkeypatch.setattr("blink_persistent.gpu.direct._MODULES", tmp_path)
    machine.gpu.attributes.update(attributes)
    assert machine.open(host_ranges) is None
    assert complaint in caplog.text
    assert bool(caplog.text) == bool(complaint)


async def test_slots_are_taken_back_after_nothing_can_land(machine: Machine) -> None:
    """Whether the frontend, its agent or the door has died: the door's connection ends."""
    machine.open()
    gate = await machine.gate()
    relay = Relay(await machine.port(gate), lambda _range: None)
    for slot in range(12):  # 8 rows
        PlainFrontend(relay.mirror.ring, SHAPE).submit(slot, ENDLESS)
    relay.turn()
    while machine.harness.ring.field("generated_tokens") < 16:
        machine.harness.run_pass()
        if machine.harness.flight is not None:
            machine.harness.finish_step()
    machine.fake.events.clear()
    machine.gpu.on_push = lambda: machine.fake.events.append("words")
    gate.close()
    await machine.given_back(1, 2)
    events = machine.fake.events[: machine.fake.events.index("words")]
    assert events == ["to ERR", "destroyed", *["deregistered"] * len(Region)]
    with pytest.raises(PortLost):
        relay.turn()
    relay.disconnect()
    relay.close()


def test_what_lands_while_a_look_is_under_way_is_cancelled_by_the_next(machine: Machine) -> None:
    leases = machine.open()
    assert leases is not None
    ring, slot = machine.harness.ring, HOST_RANGES * machine.harness.ring.slots_per_range

    def land_and_give_up() -> None:
        machine.gpu.on_pull = lambda: None
        PlainFrontend(ring, SHAPE).submit(slot, ENDLESS)
        leases.begin_reclaim(HOST_RANGES)

    machine.gpu.on_pull = land_and_give_up
    leases.look()
    assert not leases.is_reclaimed(HOST_RANGES)
    assert ring.atomic.submitted(slot) == 1
    leases.look()
    machine.harness.settle()
    assert not leases.is_reclaimed(HOST_RANGES)
    leases.look()
    assert leases.is_reclaimed(HOST_RANGES)


def test_a_range_that_is_free_again_is_left_to_its_next_owner(machine: Machine) -> None:
    leases = machine.open()
    assert leases is not None
    ring, slot = machine.harness.ring, HOST_RANGES * machine.harness.ring.slots_per_range
    leases.begin_reclaim(HOST_RANGES)
    leases.look()
    PlainFrontend(ring, SHAPE).submit(slot, ENDLESS)
    leases.look()
    assert (ring.words["cancel"][slot], ring.words["release"][slot]) == (0, 0)
    assert leases.is_reclaimed(HOST_RANGES)


async def test_another_connection_ends_the_one_before(machine: Machine) -> None:
    machine.open()
    async with gate_to(machine) as gate:
        first = await machine.port(gate)
        second = await machine.port(gate)
        with pytest.raises(PortLost):
            first.read(STATUS)
        assert second.read(STATUS)[0].nbytes == 16
        first.close()
        second.close()


async def test_the_end_of_the_gpus_process_is_the_gates(machine: Machine) -> None:
    leases = machine.open()
    assert leases is not None
    async with gate_to(machine) as gate:
        port = await machine.port(gate)
        machine.fake.events.clear()
        leases.close()
        machine.leases = None
        assert machine.fake.events == ["to ERR", "destroyed", *["deregistered"] * len(Region)]
        await asyncio.wait_for(gate.lost.wait(), 10)
        with pytest.raises(PortLost):
            port.read(STATUS)
        with pytest.raises(Unavailable, match="process is gone"):
            await gate.offer()
        port.close()


async def test_a_device_that_is_not_there_takes_no_range(machine: Machine) -> None:
    machine.open()
    with pytest.raises(Unavailable, match="RDMA device 'none'"):
        await machine.gate(device="none")
    async with gate_to(machine, 2) as gate:
        assert (await gate.offer())["ranges"] == 2
        with pytest.raises(Unavailable, match="0 of the ring's 2 ranges are free"):
            await machine.gate()


async def test_a_device_that_gives_no_queue_takes_no_range(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise machine.fake.PyverbsError("no memory")

    machine.open()
    with monkeypatch.context() as patched:
        patched.setattr(machine.fake, "CQ", refuse)
        with pytest.raises(Unavailable, match="'mlx5_0': no completion queue: no memory"):
            await machine.gate()
    async with gate_to(machine, 2) as gate:
        assert (await gate.offer())["ranges"] == 2


async def test_a_range_in_which_something_may_still_land_is_nobody_elses(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise machine.fake.PyverbsError("busy")

    machine.open()
    gate = await machine.gate()
    await gate.offer()
    (pair,) = machine.fake.pairs.values()
    monkeypatch.setattr(pair, "close", refuse)
    gate.close()
    with pytest.raises(Unavailable, match="1 of the ring's 2 ranges are free"):
        await machine.gate(2)
    async with gate_to(machine) as other:
        assert (await other.offer())["first_range"] == HOST_RANGES + 1
    assert "stay out of use: RDMA device 'mlx5_0' keeps the agent's connection" in caplog.text


async def test_nonsense_is_answered_and_ends_nothing(machine: Machine) -> None:
    machine.open()
    async with gate_to(machine) as gate:
        with pytest.raises(Unavailable, match="there is no address to connect by"):
            await gate.connect({})
        await gate.offer()
        with pytest.raises(Unavailable, match="unexpected line 'what'"):
            await gate._ask("what", {"type": "what"})  # type: ignore[attr-defined]
        port = await machine.port(gate)
        assert port.epoch == SHAPE.epoch
        port.close()
