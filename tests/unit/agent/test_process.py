"""The agent as a process of its own, between a runner and workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from blink_persistent.agent.offer import RingOffer
from blink_persistent.frontend.session import RingSession
from blink_persistent.frontend.shm import connect
from blink_persistent.ring import SlotState, unpack_status
from blink_persistent.testing.agent_thread import lease_limits
from blink_persistent.testing.scripted_session import continuation, events_of, generate, request
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_persistent.testing.threaded_ring import ThreadedRing
from blink_server.backend import Endpoint, ModelVersion
from blink_server.errors import EngineFailure

VERSION = ModelVersion("tiny", 3, Path("nowhere"), {})
SHAPE = ScriptedShape(ranges=2)

# A worker that asks for much and says when its first token has come.
WORKER = """
import asyncio, sys
from pathlib import Path
from blink_persistent.frontend.shm import connect
from blink_server.backend import Endpoint, GenerateRequest, ModelVersion

async def main():
    endpoint = Endpoint("shm", {"socket": sys.argv[1]})
    session = await connect(ModelVersion("tiny", 3, Path("nowhere"), {}), endpoint)
    asked = GenerateRequest(prompt_ids=[4], max_tokens=90, ignore_eos=True)
    streams = [await session.submit(asked) for _ in range(30)]
    await anext(aiter(streams[0]))
    print("busy", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Machine:
    """A runner in this process, and agents and workers as processes."""

    def __init__(self, directory: Path) -> None:
        self.ring = ThreadedRing(SHAPE)
        harness = self.ring.harness
        harness.scripted.step_microseconds = 1000
        self.runner_socket = directory / "runner.sock"
        self.agent_socket = directory / "agent.sock"
        self.offer = RingOffer(
            self.runner_socket,
            {
                "transport": "memory",
                "address": {"bytes": harness.ring.field("total_bytes")},
                "first_range": 1,
                "ranges": 1,
                "epoch": SHAPE.epoch,
                "limits": lease_limits(SHAPE),
            },
            [harness.ring_fd, harness.doorbell],
        )
        self.offer.start()
        self._offered = True
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def start_agent(self) -> subprocess.Popen[str]:
        sockets = ("--runner", str(self.runner_socket), "--serve", str(self.agent_socket))
        return self.start("-m", "blink_persistent.agent", *sockets)

    def serving_agent(self) -> subprocess.Popen[str]:
        agent = self.start_agent()
        assert agent.stdout is not None
        said = {"type": "serving", "socket": str(self.agent_socket)}
        assert json.loads(agent.stdout.readline()) == said
        return agent

    def busy_worker(self) -> subprocess.Popen[str]:
        worker = self.start("-c", WORKER, str(self.agent_socket))
        assert worker.stdout is not None
        assert worker.stdout.readline() == "busy\n"
        return worker

    async def connect(self) -> RingSession:
        return await connect(VERSION, Endpoint("shm", {"socket": str(self.agent_socket)}))

    def stand_still_after(self, steps: int) -> None:
        """Of what is submitted next nothing ends, as its engine takes no more than so many steps
        before `go_on`."""
        self.ring.stand_still_after(steps)

    def go_on(self) -> None:
        self.ring.go_on()

    def states(self) -> set[SlotState]:
        atomic = self.ring.harness.ring.atomic
        return {unpack_status(atomic.status(slot)[2])[1] for slot in range(256, 512)}

    def go(self) -> None:
        """Be gone, as far as an agent can tell."""
        if self._offered:
            self._offered = False
            self.offer.close()

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()
        self.go()
        self.ring.close()


@pytest.fixture
def machine(short_path: Path) -> Iterator[Machine]:
    machine = Machine(short_path)
    yield machine
    machine.close()


def end(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    process.send_signal(number)
    errors = process.communicate(timeout=20)[1]
    return process.returncode, errors


def stop(process: subprocess.Popen[str]) -> None:
    """SIGSTOP, and return when it has stopped."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


async def test_serves_workers_and_ends_in_order(machine: Machine) -> None:
    agent = machine.serving_agent()
    session = await machine.connect()
    asked = [request([3 + n, 9], max_tokens=20) for n in range(20)]
    answers = await asyncio.gather(*(generate(session, one) for one in asked))
    assert [tokens for tokens, _ in answers] == [continuation(machine.ring, a) for a in asked]
    await session.close()
    assert end(agent, signal.SIGTERM)[0] == 0
    assert not machine.agent_socket.exists()
    end(machine.serving_agent(), signal.SIGTERM)  # an orderly end leaves the ranges free


async def test_a_killed_worker_leaves_nothing_behind_in_the_ring(machine: Machine) -> None:
    machine.serving_agent()
    machine.stand_still_after(3)
    worker = machine.busy_worker()
    assert machine.states() > {SlotState.EMPTY}
    end(worker, signal.SIGKILL)
    machine.go_on()
    async with asyncio.timeout(20):
        session = await machine.connect()  # answered once the agent has the range back
    assert machine.states() == {SlotState.EMPTY}
    assert machine.ring.harness.ring.atomic.submitted(256) == 1
    asked = request([9], max_tokens=20)
    assert (await generate(session, asked))[0] == continuation(machine.ring, asked)
    assert machine.ring.harness.ring.atomic.submitted(256) == 2
    await session.close()


async def test_a_killed_agents_successor_goes_on_with_its_tickets(machine: Machine) -> None:
    agent = machine.serving_agent()
    session = await machine.connect()
    machine.stand_still_after(3)
    streams = [await session.submit(request([5], max_tokens=90)) for _ in range(30)]
    await anext(aiter(streams[0]))
    end(agent, signal.SIGKILL)
    with pytest.raises(EngineFailure, match="is gone"):
        await events_of(streams[-1])
    await session.close()
    machine.go_on()

    machine.serving_agent()  # says so once nothing of the first agent's is left
    assert machine.states() == {SlotState.EMPTY}
    session = await machine.connect()
    asked = request([9], max_tokens=20)
    assert (await generate(session, asked))[0] == continuation(machine.ring, asked)
    assert machine.ring.harness.ring.atomic.submitted(256) == 2
    await session.close()


def test_a_second_agent_is_refused_while_the_first_could_write(machine: Machine) -> None:
    first = machine.serving_agent()
    stop(first)
    second = machine.start_agent()
    errors = second.communicate(timeout=20)[1]
    assert second.returncode == 1
    assert f"agent {first.pid} has its ranges" in errors.splitlines()[-1]
    first.send_signal(signal.SIGCONT)


def test_ends_with_the_runner(machine: Machine) -> None:
    agent = machine.serving_agent()
    machine.go()
    agent.communicate(timeout=20)
    assert agent.returncode == 0


async def test_a_flush_says_when_all_is_in_the_ring(machine: Machine) -> None:
    agent = machine.serving_agent()
    session = await machine.connect()
    submitted = machine.ring.harness.ring.atomic.submitted
    stop(agent)
    streams = [await session.submit(request([5], max_tokens=3)) for _ in range(50)]
    assert not any(submitted(slot) for slot in range(256, 306))
    assert not await asyncio.to_thread(machine.offer.flush, 0.01)
    os.kill(agent.pid, signal.SIGCONT)
    assert await asyncio.to_thread(machine.offer.flush, 20)
    assert all(submitted(slot) for slot in range(256, 306))
    assert len(streams) == 50
    await session.close()


def test_a_runner_that_is_not_there_is_named(machine: Machine) -> None:
    machine.go()
    machine.runner_socket.unlink()
    agent = machine.start_agent()
    errors = agent.communicate(timeout=20)[1]
    assert agent.returncode == 1
    assert f"the runner at {machine.runner_socket}: " in errors
    assert "No such file" in errors
