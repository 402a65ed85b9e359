"""The agent's port on real verbs: what breaks a connection, what it says, and what comes after."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from blink_persistent.agent.port import PortLost, Region, Span, parts
from blink_persistent.agent.relay import Relay
from blink_persistent.gpu.direct import DirectMemory
from blink_persistent.ring import SlotState
from blink_persistent.testing.plain_frontend import PlainFrontend
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.threaded_ring import ThreadedRing
from blink_server.errors import Unavailable
from rdma_frontend.device import Device
from rdma_frontend.gpu_end import GpuEnd
from rdma_frontend.port import _DEPTH, RdmaPort
from rdma_frontend.testing.guest import (
    PORTS_FRONTEND_DEVICE,
    PORTS_HOST_DEVICE,
    PORTS_HOST_LINK,
    SHAPE,
    set_link,
)
from rdma_frontend.testing.rdma_ring import RdmaRing

pytestmark = pytest.mark.rdma

STATUS = [Span(Region.STATUS, 0, 4096)]
WORDS = np.zeros(16, np.uint8)


@pytest.fixture
def rdma(ring: ThreadedRing) -> Iterator[RdmaRing]:
    rdma = RdmaRing(
        ring.harness.ring_fd,
        ring.harness.ring_doorbell,
        host=PORTS_HOST_DEVICE,
        frontend=PORTS_FRONTEND_DEVICE,
    )
    yield rdma
    rdma.close()


@pytest.fixture
def port(rdma: RdmaRing) -> Iterator[RdmaPort]:
    port = rdma.port(1, 2)
    assert isinstance(port, RdmaPort)
    yield port
    port.close()


def lose(port: RdmaPort, complaint: str) -> None:
    """The next read fails, and every call after it."""
    with pytest.raises(PortLost, match=complaint):
        port.read(STATUS)
    with pytest.raises(PortLost):
        port.write(Region.WORDS, 0, WORDS)
    with pytest.raises(PortLost):
        port.read(STATUS)


def test_a_wrong_key_ends_the_connection_by_name(port: RdmaPort) -> None:
    port._keys[Region.STATUS] ^= 0x55
    lose(port, "the region was revoked, or its key is wrong")


@pytest.mark.parametrize("region", [Region.HEADER, Region.STATUS, Region.TIMINGS, Region.OUTPUTS])
def test_what_the_scheduler_writes_cannot_be_written(port: RdmaPort, region: Region) -> None:
    port.write(region, 0, WORDS)
    with pytest.raises(PortLost, match="its key is wrong"):
        port.read(STATUS)


@pytest.mark.parametrize("step", [-1, 1])
def test_the_neighbours_range_is_out_of_reach(port: RdmaPort, step: int) -> None:
    """The host's device refuses it, not only this side's own check."""
    part = port._parts[Region.WORDS]
    port._parts[Region.WORDS] = part._replace(start=part.start + step * (1 << 20))
    port.write(Region.WORDS, 0, WORDS)
    lose(port, "its key is wrong")


def test_a_revoked_region_can_be_had_again(rdma: RdmaRing, port: RdmaPort) -> None:
    end = rdma.ends[0]
    end.revoke()
    lose(port, "the other side does not answer|was revoked")
    again = rdma.port_to(end, 1, 2)
    assert len(again.read(STATUS)[0]) == 4096
    again.close()


def test_a_link_that_is_down_is_told_in_finite_time(port: RdmaPort) -> None:
    set_link(PORTS_HOST_LINK, "down")
    try:
        lose(port, "the other side does not answer")
    finally:
        set_link(PORTS_HOST_LINK, "up")


def test_more_work_than_the_queue_holds(port: RdmaPort) -> None:
    count = 2 * _DEPTH + 1
    for number in range(count):
        port.write(Region.PROMPTS, 4 * number, np.array([number], np.uint32).view(np.uint8))
    port.post()
    spans = [Span(Region.PROMPTS, 4 * number, 4) for number in range(count)]
    found = [int(buffer.view(np.uint32)[0]) for buffer in port.read(spans)]
    assert found == list(range(count))


def test_requests_go_on_over_another_connection(ring: ThreadedRing, rdma: RdmaRing) -> None:
    """Tokens that came meanwhile are fetched once, what was not sent is sent."""
    ring.harness.scripted.step_microseconds = 10_000
    first = rdma.port(1, 2)
    relay = Relay(first, lambda _range: None)
    workers = PlainFrontend(relay.mirror.ring, SHAPE)
    asked = [ScriptedRequest(prompt=(3 + n, 5), max_tokens=20, ignore_eos=True) for n in range(20)]
    for slot, request in enumerate(asked[:10]):
        workers.submit(slot, request)
    while not all(workers.output(slot) for slot in range(3)):
        relay.turn()
    rdma.ends[0].revoke()
    for slot, request in enumerate(asked[10:], 10):
        workers.submit(slot, request)
    with pytest.raises(PortLost):
        relay.turn()
    relay.disconnect()
    relay.resume(rdma.port_to(rdma.ends[0], 1, 2))
    for slot, request in enumerate(asked):
        while (s := workers.accepted(slot)) is None or s.state is not SlotState.DECODE_COMPLETED:
            relay.turn()
        assert workers.output(slot) == request.answer(SHAPE).tokens
    assert ring.harness.ring.field("claims") == len(asked)
    relay.close()


def test_two_agents_at_once(ring: ThreadedRing, rdma: RdmaRing) -> None:
    relays = [Relay(rdma.port(n, 1), lambda _range: None) for n in (0, 2)]
    workers = [PlainFrontend(relay.mirror.ring, SHAPE) for relay in relays]
    asked = [ScriptedRequest(prompt=(3 + n, 7), max_tokens=20, ignore_eos=True) for n in range(2)]
    for mine, request in zip(workers, asked, strict=True):
        mine.submit(4, request)
    for relay, mine, request in zip(relays, workers, asked, strict=True):
        while (s := mine.accepted(4)) is None or s.state is not SlotState.DECODE_COMPLETED:
            relay.turn()
        assert mine.output(4) == request.answer(SHAPE).tokens
        relay.close()


def test_memory_that_no_device_can_register_is_named(ring: ThreadedRing) -> None:
    """Soft-RoCE takes no dma-buf; the message is what a user without GPUDirect sees."""
    memory = DirectMemory(0, ring.harness.ring_fd)
    end = GpuEnd(PORTS_HOST_DEVICE, memory, parts(ring.harness.ring.header, 0, 1))
    with pytest.raises(Unavailable, match=r"neither by dma-buf, .* nor by nvidia-peermem"):
        end.renew()
    end.close()


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(Unavailable, match="RDMA device 'mlx5_9'"):
        Device("mlx5_9")


@pytest.mark.parametrize(
    "name",
    [{}, {"number": "x"}, {"number": 1, "gid": "no", "psn": 1, "mtu": 5, "reads_at_once": 1}],
)
def test_a_name_that_is_none_is_refused(rdma: RdmaRing, name: dict[str, object]) -> None:
    rdma.port(0, 1).close()
    end = rdma.ends[0]
    end.renew()
    with pytest.raises(ValueError, match="no name of a queue pair"):
        end.connect(name)
