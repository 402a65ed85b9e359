"""What the port posts, and both ends' order of beginning and end, on verbs without a device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from blink_persistent.agent.port import PortLost, Region, Span, parts
from blink_persistent.agent.relay import Relay
from blink_persistent.gpu.direct import DirectMemory
from blink_persistent.testing.plain_frontend import PlainFrontend
from blink_persistent.testing.scripted_harness import ScriptedHarness
from blink_persistent.testing.scripted_request import Answer, ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape
from rdma_frontend.device import Device
from rdma_frontend.gpu_end import GpuEnd
from rdma_frontend.host import READ_ONLY, HostEnd, HostMemory
from rdma_frontend.port import _DEPTH, RdmaPort
from rdma_frontend.testing.fake_verbs import (
    LOCAL_WRITE,
    REMOTE_READ,
    REMOTE_WRITE,
    FakeVerbs,
    use_fake_verbs,
)

SHAPE = ScriptedShape(ranges=2, max_rows=8, epoch=5)
ONE = np.ones(4, np.uint8)


class Machine:
    """A ring, the host's end for its second range, and a port to it."""

    def __init__(self, fake: FakeVerbs, harness: ScriptedHarness) -> None:
        self.fake, self.harness = fake, harness
        memory = HostMemory(harness.ring_fd, first_range=1, ranges=1)
        self.end = HostEnd(Device("host"), memory)
        self.port = self.connect()

    def connect(self) -> RdmaPort:
        address = self.end.renew()
        return RdmaPort(Device("dpu"), address, self.end.connect, first_range=1, ranges=1)

    def serve(self, port: RdmaPort, count: int) -> list[Answer | None]:
        """Answers to so many requests of one burst."""
        relay = Relay(port, lambda _range: None)
        workers = PlainFrontend(relay.mirror.ring, SHAPE)
        asked = [ScriptedRequest(prompt=(3 + n,), max_tokens=4) for n in range(count)]
        for slot, request in enumerate(asked):
            workers.submit(slot, request)
        self.before = (self.fake.chains, self.fake.writes)
        relay.turn()
        self.after = (self.fake.chains, self.fake.writes)
        self.harness.settle()
        relay.turn()
        answers = []
        for slot, request in enumerate(asked):
            status = workers.accepted(slot)
            answers.append(status and Answer(workers.output(slot), status.reason))
            assert answers[-1] == request.answer(SHAPE)
        return answers


@pytest.fixture
def fake() -> Iterator[FakeVerbs]:
    with use_fake_verbs() as fake:
        yield fake


@pytest.fixture
def machine(fake: FakeVerbs) -> Iterator[Machine]:
    with ScriptedHarness(SHAPE) as harness:
        machine = Machine(fake, harness)
        yield machine
        machine.port.close()
        machine.end.close()


def test_a_burst_goes_in_one_chain(machine: Machine) -> None:
    machine.serve(machine.port, 8)
    (chains, writes), (chains_after, writes_after) = machine.before, machine.after
    assert chains_after - chains == 2  # the submits, and the read of the statuses
    assert writes_after - writes <= 8 + 2  # prompts lie apart; records and words are together


def test_few_are_told_of(machine: Machine) -> None:
    machine.fake.signalled = 0
    writes = machine.fake.writes
    for number in range(100):
        machine.port.write(Region.PROMPTS, 8 * number, ONE)
    machine.port.post()
    machine.port.read([Span(Region.STATUS, 0, 16)])
    assert machine.fake.writes - writes == 100
    assert machine.fake.signalled <= 4


def test_the_queue_is_never_overrun(machine: Machine) -> None:
    """The fake refuses what a device's queue would not hold."""
    for number in range(4 * _DEPTH):
        machine.port.write(Region.PROMPTS, 4 * number, np.uint32([number]).view(np.uint8))
    machine.port.post()
    spans = [Span(Region.PROMPTS, 4 * number, 4) for number in range(4 * _DEPTH)]
    found = [int(each.view(np.uint32)[0]) for each in machine.port.read(spans)]
    assert found == list(range(4 * _DEPTH))


def test_rings_in_any_number_are_heard(machine: Machine) -> None:
    rung = 0
    for _ in range(600):
        machine.port.write(Region.WORDS, 12, ONE)
        machine.port.post()
        machine.port.read([Span(Region.STATUS, 0, 16)])
        rung += machine.end.heard()
    assert rung == 600


def test_what_is_read_only_is_so_for_the_device(machine: Machine) -> None:
    allowed = {key: region.access for key, region in machine.fake.regions.items()}
    for region, key in machine.port._keys.items():
        reads_only = region in READ_ONLY
        assert allowed[key] == (REMOTE_READ if reads_only else REMOTE_READ | REMOTE_WRITE | 1)
    assert len(set(machine.port._keys.values())) == 2
    every = REMOTE_READ | REMOTE_WRITE | LOCAL_WRITE
    assert all(access | every == every for access in allowed.values())  # no relaxed ordering


def test_an_end_is_in_order(machine: Machine) -> None:
    machine.fake.events.clear()
    machine.end.revoke()
    assert machine.fake.events == ["to ERR", "destroyed", "deregistered", "deregistered"]
    with pytest.raises(PortLost, match="does not answer"):
        machine.port.read([Span(Region.STATUS, 0, 16)])


def test_a_new_connection_ends_the_one_before(machine: Machine) -> None:
    old = machine.port
    machine.port = machine.connect()
    old.write(Region.WORDS, 0, ONE)
    with pytest.raises(PortLost):
        old.read([Span(Region.STATUS, 0, 16)])
    assert not machine.port.read([Span(Region.WORDS, 0, 16)])[0].any()
    old.close()
    machine.serve(machine.port, 3)


def test_a_key_of_the_connection_before_opens_nothing(machine: Machine) -> None:
    old_keys = dict(machine.port._keys)
    machine.port.close()
    machine.port = machine.connect()
    assert not set(old_keys.values()) & set(machine.port._keys.values())
    machine.port._keys = old_keys
    with pytest.raises(PortLost, match="the region was revoked, or its key is wrong"):
        machine.port.read([Span(Region.STATUS, 0, 16)])


def test_a_peer_that_never_answers_is_given_up(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes late then is of no use: the connection is over."""
    monkeypatch.setattr("rdma_frontend.port._PATIENCE_SECONDS", 0.02)
    machine.fake.stalled = True
    with pytest.raises(PortLost, match=r"has not answered for 0\.02 s"):
        machine.port.read([Span(Region.STATUS, 0, 16)])
    machine.fake.stalled = False
    with pytest.raises(PortLost):
        machine.port.read([Span(Region.STATUS, 0, 16)])
    machine.port.close()
    machine.port = machine.connect()
    machine.serve(machine.port, 2)


def test_a_host_that_refuses_the_queue_pair_leaves_nothing_open(machine: Machine) -> None:
    address = machine.end.renew()
    pairs = set(machine.fake.pairs)
    device = Device("dpu")

    def refuse(_name: object) -> dict[str, object]:
        raise PortLost("no")

    with pytest.raises(PortLost, match="no"):
        RdmaPort(device, address, refuse, first_range=1, ranges=1)
    assert set(machine.fake.pairs) == pairs


def test_a_ring_by_dma_buf_is_served_alike(fake: FakeVerbs) -> None:
    """A region for each part, addressed from the dma-buf's start; nobody is rung."""
    with ScriptedHarness(SHAPE) as harness:
        memory = DirectMemory(0, harness.ring_fd)
        end = GpuEnd("host", memory, parts(harness.ring.header, 1, 1))
        address = end.renew()
        assert not address["bell"]
        assert len({key for _, _, key in address["regions"].values()}) == len(Region)
        port = RdmaPort(Device("dpu"), address, end.connect, first_range=1, ranges=1)
        machine = Machine.__new__(Machine)
        machine.fake, machine.harness = fake, harness
        machine.serve(port, 5)
        port.close()
        end.close()
