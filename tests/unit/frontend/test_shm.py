from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from blink_persistent import _native
from blink_persistent.frontend.session import RingSession
from blink_persistent.frontend.shm import connect
from blink_persistent.leases import LeaseKeeper
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_persistent.testing.threaded_ring import ThreadedRing
from blink_server.backend import Endpoint, GenerateRequest, ModelVersion
from blink_server.errors import EngineFailure, Unavailable

VERSION = ModelVersion("tiny", 3, Path("nowhere"), {})
SHAPE = ScriptedShape(ranges=2)
LIMITS = {
    "context_length": SHAPE.context_length,
    "vocabulary_size": SHAPE.vocabulary_size,
    "eos_token_ids": [SHAPE.eos_token_id],
    "max_queue": 100,
    "max_rows": 8,
    "kv_blocks": 8,
    "kv_block_tokens": 16,
    "graphs": [[0, 8, 8], [1, 2, 32]],
}


class Runner:
    """What a runner process has: a ring with its threads, and the keeper of its leases."""

    def __init__(self, ring: ThreadedRing, path: Path) -> None:
        self.ring = ring
        self.endpoint = Endpoint("shm", {"socket": str(path)})
        harness = ring.harness
        self._keeper: LeaseKeeper | None = LeaseKeeper(
            harness.ring,
            harness.ring_fd,
            socket_path=path,
            doorbell=harness.doorbell,
            notify=harness.bells,
            limits=LIMITS,
        )
        self._keeper.start()

    def go(self) -> None:
        """Be gone, as far as owners of ranges can tell."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()


@pytest.fixture
def runner(start_ring: Any, short_path: Path) -> Iterator[Runner]:
    started = Runner(start_ring(SHAPE), short_path / "ring.sock")
    yield started
    started.go()


async def generate(session: RingSession, prompt: list[int]) -> list[int]:
    stream = await session.submit(GenerateRequest(prompt_ids=prompt, max_tokens=20))
    return [token async for event in stream for token in event.token_ids]


def continuation(prompt: list[int]) -> list[int]:
    return _native.scripted_continuation(SHAPE.rule, prompt, 20)


async def connect_when_free(runner: Runner) -> RingSession:
    """Connect once the keeper has taken a range back; it does so in its own time."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(Unavailable):
                return await connect(VERSION, runner.endpoint)


async def test_serves_over_leased_ranges(runner: Runner) -> None:
    sessions = [await connect(VERSION, runner.endpoint) for _ in range(2)]
    assert sessions[0].limits.context_length == SHAPE.context_length
    assert sessions[0].limits.vocabulary_size == SHAPE.vocabulary_size
    assert sessions[0].limits.eos_token_ids == (SHAPE.eos_token_id,)
    with pytest.raises(
        Unavailable, match="runner of tiny:3 refused: 0 of the ring's 2 ranges are free"
    ):
        await connect(VERSION, runner.endpoint)
    prompts = [[3 + n, 10] for n in range(20)]
    answers = await asyncio.gather(*(generate(sessions[n % 2], p) for n, p in enumerate(prompts)))
    assert answers == [continuation(prompt) for prompt in prompts]
    await sessions[0].close()
    third = await connect_when_free(runner)
    assert await generate(third, [9]) == continuation([9])
    await asyncio.gather(third.close(), sessions[1].close())


def test_serves_on_the_workers_loop(runner: Runner) -> None:
    async def serve() -> list[int]:
        session = await connect(VERSION, runner.endpoint)
        tokens = await generate(session, [9, 10])
        lost = asyncio.Event()
        session.on_closed(lambda _reason: lost.set())
        runner.go()
        await asyncio.wait_for(lost.wait(), 20)
        await session.close()
        return tokens

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        assert loop.run(serve()) == continuation([9, 10])


async def test_the_end_of_the_runner_ends_its_streams(runner: Runner) -> None:
    session = await connect(VERSION, runner.endpoint)
    reasons: list[str] = []
    session.on_closed(reasons.append)
    runner.ring.open_gate.clear()
    stream = await session.submit(GenerateRequest(prompt_ids=[9], max_tokens=20, request_id="a"))
    runner.go()
    with pytest.raises(EngineFailure, match="'a' failed: the runner of tiny:3 is gone"):
        await anext(aiter(stream))
    with pytest.raises(Unavailable, match="the runner of tiny:3 is gone"):
        await session.submit(GenerateRequest(prompt_ids=[9], max_tokens=20))
    assert reasons == ["the runner of tiny:3 is gone"]
    await session.close()
    assert reasons == ["the runner of tiny:3 is gone"]


async def test_slots_left_behind_are_taken_back(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blink_persistent.frontend.session._CLOSE_SECONDS", 0.0)
    runner.ring.open_gate.clear()
    ring = runner.ring.harness.ring
    left = await connect(VERSION, runner.endpoint)
    await left.submit(GenerateRequest(prompt_ids=[9], max_tokens=20))
    while not ring.field("prefill_launches"):
        os.sched_yield()  # from here on only the end of the step can free its row
    await left.close()
    other = await connect(VERSION, runner.endpoint)
    waiting = asyncio.ensure_future(connect_when_free(runner))
    runner.ring.open_gate.set()
    session = await waiting
    assert await generate(session, [9]) == continuation([9])
    assert ring.atomic.submitted(0) == 2
    await asyncio.gather(session.close(), other.close())


async def test_close_gives_descriptors_and_memory_back(runner: Runner) -> None:
    before = held_resources()
    session = await connect(VERSION, runner.endpoint)
    assert held_resources() != before
    assert await generate(session, [9]) == continuation([9])
    await session.close()
    await session.close()
    await until_held(before)


def held_resources() -> tuple[int, int]:
    """(open descriptors, mappings of rings) of this process, which is the runner's, too."""
    maps = Path("/proc/self/maps").read_text()
    return len(list(Path("/proc/self/fd").iterdir())), maps.count("memfd:blink-ring")


async def until_held(resources: tuple[int, int]) -> None:
    """Return when no more is held; the other end of a connection is closed by its own thread.

    Less may be: what other tests have left behind goes when it is collected.
    """
    async with asyncio.timeout(20):
        while any(map(int.__gt__, held_resources(), resources)):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_another_layout_is_refused_by_name(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blink_persistent.frontend.shm.LAYOUT_HASH", 0xABC)
    with pytest.raises(Unavailable, match="differs from the worker's 0000000000000abc"):
        await connect(VERSION, runner.endpoint)


async def test_nobody_there(short_path: Path) -> None:
    endpoint = Endpoint("shm", {"socket": str(short_path / "none.sock")})
    with pytest.raises(Unavailable, match="runner of tiny:3: No such file"):
        await connect(VERSION, endpoint)
    with pytest.raises(Unavailable, match="no 'socket'"):
        await connect(VERSION, Endpoint("shm", {}))


def _line(ring: ThreadedRing, **changes: Any) -> bytes:
    harness = ring.harness
    fields = {
        "type": "attached",
        "range": 0,
        "epoch": harness.ring.epoch,
        "bytes": harness.ring.field("total_bytes"),
        **LIMITS,
        **changes,
    }
    return json.dumps({key: value for key, value in fields.items() if value is not ...}).encode()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"epoch": 99}, "epoch is 1, not 99"),
        ({"range": 2}, "no range 2"),
        ({"range": "0"}, "granted no usable ring"),
        ({"bytes": 1 << 40}, "granted no usable ring"),
        ({"bytes": 4096}, "header sizes do not fit"),
        ({"max_queue": ...}, "max_queue"),
        ({"eos_token_ids": 7}, "granted no usable ring"),
    ],
)
async def test_a_grant_that_does_not_hold_is_refused(
    start_ring: Any, short_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    ring = start_ring(SHAPE)
    harness = ring.harness
    fds = [harness.ring_fd, harness.doorbell, harness.bells[0]]
    async with answering(short_path, _line(ring, **changes) + b"\n", fds) as endpoint:
        before = held_resources()
        with pytest.raises(Unavailable, match=complaint):
            await connect(VERSION, endpoint)
        await until_held(before)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"", "the connection ended"),
        (b'{"type": "atta', "the connection ended"),
        (b"hello\n", "unreadable answer"),
        (b"[]\n", "no JSON object"),
        (b'{"type": "attached"}\n', "granted no usable ring"),
        (b'{"type": "refused", "reason": "no mood"}\n', "refused: no mood"),
    ],
)
async def test_an_answer_that_makes_no_sense(short_path: Path, line: bytes, complaint: str) -> None:
    async with answering(short_path, line, []) as endpoint:
        with pytest.raises(Unavailable, match=complaint):
            await connect(VERSION, endpoint)


async def test_silence_has_an_end(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blink_persistent.frontend.shm._HANDSHAKE_SECONDS", 0.05)
    async with answering(short_path, None, []) as endpoint:
        with pytest.raises(Unavailable, match="did not answer"):
            await connect(VERSION, endpoint)


@contextlib.asynccontextmanager
async def answering(directory: Path, line: bytes | None, fds: list[int]) -> Any:
    """An endpoint that answers one connection with this line; with None, it never does."""
    path = directory / "answering.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    done = threading.Event()

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            if line is None:
                done.wait()
            elif line:
                socket.send_fds(connection, [line], fds)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield Endpoint("shm", {"socket": str(path)})
    finally:
        done.set()
        thread.join()
        listener.close()
