"""What every port promises the agent, and the agent's whole path over it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink_persistent import _native
from blink_persistent.agent.cuda_port import CudaPort
from blink_persistent.agent.memory_port import MemoryPort
from blink_persistent.agent.port import Region, RingPort, Span
from blink_persistent.frontend.session import RingSession
from blink_persistent.frontend.shm import connect
from blink_persistent.gpu.driver import cuda_driver
from blink_persistent.ring import RECORD
from blink_persistent.testing.agent_thread import AgentThread, lease_limits
from blink_persistent.testing.late_gpu import LateGpu
from blink_persistent.testing.scripted_session import events_of
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_persistent.testing.threaded_ring import ThreadedRing
from blink_server.backend import (
    Endpoint,
    FinishReason,
    GenerateRequest,
    ModelVersion,
    SamplingParams,
    TokenEvent,
)
from blink_server.errors import EngineFailure, Unavailable

VERSION = ModelVersion("tiny", 3, Path("nowhere"), {})
SHAPE = ScriptedShape(ranges=3, max_rows=8, epoch=5)
STEP_NS = 200_000  # so that much is in flight for a while


class MakePort:
    """Makes ports to one ring: `make_port(first_range, ranges)`.

    `ring`: the ring, where it is served in this process.
    """

    def __init__(self, make: Callable[[int, int], RingPort], ring: ThreadedRing | None) -> None:
        self._make = make
        self._ring = ring

    def __call__(self, first_range: int, ranges: int) -> RingPort:
        return self._make(first_range, ranges)

    def stand_still_after(self, steps: int) -> None:
        """Nothing that is submitted next ends before `go_on`; on a GPU it takes a while."""
        if self._ring is not None:
            self._ring.stand_still_after(steps)

    def go_on(self) -> None:
        if self._ring is not None:
            self._ring.go_on()


PORTS = {
    "memory": (),
    "late copies": (),
    "fake verbs": (),
    "cuda": pytest.mark.gpu,
    "rdma": pytest.mark.rdma,
}


@pytest.fixture(params=[pytest.param(name, marks=marks) for name, marks in PORTS.items()])
def make_port(request: pytest.FixtureRequest) -> Iterator[MakePort]:
    """Ports to one ring with a running scheduler behind it."""
    ports = {"memory": _memory, "late copies": _late, "cuda": _cuda, "rdma": _rdma}
    ports["fake verbs"] = _fake_verbs
    yield from ports[request.param]()


def _memory() -> Iterator[MakePort]:
    with ThreadedRing(SHAPE) as ring:
        harness = ring.harness
        harness.scripted.step_microseconds = STEP_NS // 1000

        def make(first_range: int, ranges: int) -> RingPort:
            return MemoryPort(
                harness.ring._memory,
                first_range=first_range,
                ranges=ranges,
                doorbell=harness.doorbell,
            )

        yield MakePort(make, ring)


def _late() -> Iterator[MakePort]:
    """The CUDA port without a GPU, over copies that are made only when it waits for them."""
    with ThreadedRing(SHAPE) as ring:
        harness = ring.harness
        harness.scripted.step_microseconds = STEP_NS // 1000
        address = np.frombuffer(harness.ring._memory, np.uint8).ctypes.data

        def make(first_range: int, ranges: int) -> RingPort:
            gpu: Any = LateGpu(harness.ring_doorbell)
            return CudaPort(gpu, address, first_range=first_range, ranges=ranges)

        yield MakePort(make, ring)


def _cuda() -> Iterator[MakePort]:
    """By CUDA IPC from another process, whose scheduler no call of this one waits for."""
    try:
        cuda_driver()
    except Unavailable as missing:
        pytest.skip(str(missing))
    asked = json.dumps({"shape": dataclasses.asdict(SHAPE), "step_ns": STEP_NS})
    program = str(Path(__file__).parents[1] / "gpu" / "agent_runner.py")
    with tempfile.TemporaryDirectory(prefix="blink-") as directory:
        command = [sys.executable, program, asked, f"{directory}/runner.sock"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as runner:  # type: ignore[call-overload]
            handle = bytes.fromhex(runner.stdout.readline())

            def make(first_range: int, ranges: int) -> RingPort:
                return CudaPort.open(handle, 0, first_range=first_range, ranges=ranges)

            yield MakePort(make, None)
            runner.communicate()


def _fake_verbs() -> Iterator[MakePort]:
    """The RDMA port without a device."""
    from rdma_frontend.testing.fake_verbs import use_fake_verbs

    with use_fake_verbs():
        yield from _rdma()


def _rdma() -> Iterator[MakePort]:
    """From one of the guest's devices to the other; see tests/rdma."""
    from rdma_frontend.testing.guest import PORTS_FRONTEND_DEVICE, PORTS_HOST_DEVICE
    from rdma_frontend.testing.rdma_ring import RdmaRing

    with ThreadedRing(SHAPE) as ring:
        harness = ring.harness
        harness.scripted.step_microseconds = STEP_NS // 1000
        rdma = RdmaRing(
            harness.ring_fd,
            harness.ring_doorbell,
            host=PORTS_HOST_DEVICE,
            frontend=PORTS_FRONTEND_DEVICE,
        )
        yield MakePort(rdma.port, ring)
        rdma.close()


@pytest.fixture
def port(make_port: MakePort) -> Iterator[RingPort]:
    port = make_port(1, 2)
    yield port
    port.close()


def numbers(count: int, start: int = 0) -> Any:
    return np.arange(start, start + count, dtype=np.uint32).view(np.uint8)


def test_says_which_ring_it_leads_to(port: RingPort) -> None:
    assert (port.epoch, port.first_range, port.ranges, port.all_ranges) == (5, 1, 2, 3)


@pytest.mark.parametrize("ranges", [(0, 4), (3, 1), (-1, 1), (0, 0)])
def test_ranges_beyond_the_ring_are_refused(make_port: MakePort, ranges: tuple[int, int]) -> None:
    with pytest.raises(Unavailable, match="the ring has 3 ranges"):
        make_port(*ranges)


def test_a_later_write_lands_over_an_earlier(port: RingPort) -> None:
    for start in range(50):
        port.write(Region.PROMPTS, 16, numbers(64, start))
    port.post()
    found = port.read([Span(Region.PROMPTS, 16, 256)])[0]
    assert found.tolist() == numbers(64, 49).tolist()


def test_written_data_may_be_changed_at_once(port: RingPort) -> None:
    data = numbers(1000).copy()
    port.write(Region.PROMPTS, 0, data)
    data[:] = 255
    port.post()
    assert port.read([Span(Region.PROMPTS, 0, 4000)])[0].tolist() == numbers(1000).tolist()


def test_writes_beyond_any_queue_land_whole(port: RingPort) -> None:
    length = 2 * SHAPE.ranges * 256 * SHAPE.context_length // 3  # int32 of both ranges' arenas
    for start in range(20):
        port.write(Region.PROMPTS, 0, numbers(length, start))
    port.post()
    found = port.read([Span(Region.PROMPTS, 0, 4 * length)])[0]
    assert np.array_equal(found, numbers(length, 19))


def test_spans_of_one_read_come_side_by_side(port: RingPort) -> None:
    port.write(Region.PROMPTS, 0, numbers(400))
    port.write(Region.AUX, 40, numbers(10, 7000))
    port.post()
    spans = [Span(Region.AUX, 40, 40), *(Span(Region.PROMPTS, 4 * n, 4) for n in range(400))]
    aux, *words = port.read([*spans, Span(Region.STATUS, 0, 0)])
    assert aux.tolist() == numbers(10, 7000).tolist()
    assert [int(word.view(np.uint32)[0]) for word in words[:-1]] == list(range(400))
    assert len(words[-1]) == 0


def test_a_read_may_be_as_long_as_is_said(port: RingPort) -> None:
    """In however many pieces, none of them a whole number of 8-byte words."""
    arena = 4 * 2 * 256 * SHAPE.context_length
    few = [Span(Region.PROMPTS, 4 * n, 4) for n in range(1999)]
    left = port.longest_read - 4 * len(few)
    whole = [Span(Region.PROMPTS, 4, min(arena - 8, left - at)) for at in range(0, left, arena - 8)]
    buffers = port.read([*few, *whole])
    assert sum(len(buffer) for buffer in buffers) == port.longest_read


def test_the_parts_of_two_ports_are_apart(make_port: MakePort) -> None:
    first, second = make_port(0, 1), make_port(1, 2)
    try:
        arena = 4 * 256 * SHAPE.context_length
        second.write(Region.PROMPTS, 0, numbers(4, 1))
        second.write(Region.RECORDS, 0, numbers(RECORD.itemsize // 4, 9))
        second.post()
        assert second.read([Span(Region.PROMPTS, 0, 16)])[0].tolist() == numbers(4, 1).tolist()
        assert not first.read([Span(Region.PROMPTS, 0, arena)])[0].any()
        assert not first.read([Span(Region.RECORDS, 0, 256 * RECORD.itemsize)])[0].any()
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize(("offset", "length"), [(-8, 8), (2 * 4096 - 8, 16), (1 << 40, 8)])
def test_nothing_outside_its_part_can_be_reached(port: RingPort, offset: int, length: int) -> None:
    with pytest.raises(ValueError, match="outside the 8192 of WORDS"):
        port.read([Span(Region.WORDS, offset, length)])
    with pytest.raises(ValueError, match="outside the 8192 of WORDS"):
        port.write(Region.WORDS, offset, np.zeros(length, np.uint8))


class Served:
    """An agent that serves workers at `endpoint`."""

    def __init__(self, make_port: MakePort, socket_path: Path) -> None:
        self.endpoint = Endpoint("shm", {"socket": str(socket_path)})
        self.thread = AgentThread(lambda: make_port(1, 2), socket_path, lease_limits(SHAPE))
        self.thread.wait_until_serving()

    async def connect(self) -> RingSession:
        return await connect(VERSION, self.endpoint)


@pytest.fixture
async def served(make_port: MakePort, short_path: Path) -> AsyncIterator[Served]:
    served = Served(make_port, short_path / "agent.sock")
    yield served
    assert served.thread.lost is None
    served.thread.close()


def script(asked: GenerateRequest) -> list[int]:
    return _native.scripted_continuation(SHAPE.rule, list(asked.prompt_ids), asked.max_tokens)


async def generate(session: RingSession, asked: GenerateRequest) -> list[TokenEvent]:
    return await events_of(await session.submit(asked))


async def test_workers_get_the_rules_answers(served: Served) -> None:
    sessions = [await served.connect(), await served.connect()]
    asked = [
        GenerateRequest(
            prompt_ids=[3 + n, 5, *range(n % 40)], max_tokens=1 + n % 50, ignore_eos=True
        )
        for n in range(60)
    ]
    events = await asyncio.gather(*(generate(sessions[n % 2], one) for n, one in enumerate(asked)))
    for one, seen in zip(asked, events, strict=True):
        assert [token for event in seen for token in event.token_ids] == script(one)
        assert seen[-1].reason is FinishReason.LENGTH
        timing = seen[-1].timing
        assert timing is not None
        assert 0 < timing.claimed_ns <= timing.first_token_ns <= timing.finished_ns
    await asyncio.gather(*(session.close() for session in sessions))


async def test_log_probabilities_come_along(served: Served) -> None:
    session = await served.connect()
    asked = GenerateRequest(
        prompt_ids=[9, 10], max_tokens=12, ignore_eos=True, sampling=SamplingParams(logprobs=2)
    )
    seen = await generate(session, asked)
    entries = [entry for event in seen for entry in event.logprobs or ()]
    assert [entry.token_id for entry in entries] == script(asked)
    assert {len(entry.top) for entry in entries} == {2}
    await session.close()


async def test_a_slot_serves_one_request_after_another(served: Served) -> None:
    session = await served.connect()
    for n in range(30):
        asked = GenerateRequest(prompt_ids=[3 + n], max_tokens=2, ignore_eos=True)
        seen = await generate(session, asked)
        assert [token for event in seen for token in event.token_ids] == script(asked)
    await session.close()


async def test_the_headers_counters_reach_the_workers(served: Served) -> None:
    session = await served.connect()
    await generate(session, GenerateRequest(prompt_ids=[7], max_tokens=20, ignore_eos=True))
    async with asyncio.timeout(20):
        while (stats := session.stats()) is None or stats.steps < 20:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert stats.prefill_launches >= 1
    await session.close()


async def test_a_bad_record_ends_its_request_only(served: Served) -> None:
    session = await served.connect()
    range_ = session._range
    good, bad = (GenerateRequest(prompt_ids=[n], max_tokens=9, ignore_eos=True) for n in (5, 6))
    write = range_._records.__setitem__

    class Spoiled:
        def __setitem__(self, slot: int, record: tuple[float, ...]) -> None:
            write(slot, (0xFFFFFFF0, *record[1:]))

    records, range_._records = range_._records, Spoiled()  # type: ignore[assignment]
    stream = await session.submit(bad)
    range_._records = records
    seen = await generate(session, good)
    assert [token for event in seen for token in event.token_ids] == script(good)
    with pytest.raises(EngineFailure, match="INVALID_RECORD"):
        async with asyncio.timeout(20):
            await anext(aiter(stream))
    await session.close()


async def test_a_successor_takes_over_a_living_ring(make_port: MakePort, short_path: Path) -> None:
    first = Served(make_port, short_path / "first.sock")
    session = await first.connect()
    make_port.stand_still_after(3)
    asked = GenerateRequest(prompt_ids=[4], max_tokens=90, ignore_eos=True)
    streams = [await session.submit(asked) for _ in range(100)]
    await anext(aiter(streams[0]))
    first.thread.close()
    with pytest.raises(EngineFailure, match="is gone"):
        await events_of(streams[-1])
    await session.close()
    make_port.go_on()

    second = Served(make_port, short_path / "second.sock")
    session = await second.connect()
    seen = await generate(session, GenerateRequest(prompt_ids=[8], max_tokens=9, ignore_eos=True))
    assert [token for event in seen for token in event.token_ids] == _native.scripted_continuation(
        SHAPE.rule, [8], 9
    )
    await session.close()
    second.thread.close()
