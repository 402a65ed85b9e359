"""A runner on the GPU, its agent and a worker: three processes, joined by CUDA IPC and shared
memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from blink_persistent import _native
from blink_persistent.frontend.session import RingSession
from blink_persistent.frontend.shm import connect
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.backend import Endpoint, GenerateRequest, ModelVersion

pytestmark = pytest.mark.gpu

VERSION = ModelVersion("tiny", 3, Path("nowhere"), {})
STREAMS = 64
TOKENS = 600
RULE = ScriptedShape().rule


class Machine:
    """The runner, and one agent after another."""

    def __init__(self, directory: Path) -> None:
        self._sockets = [str(directory / name) for name in ("runner.sock", "agent.sock")]
        program = Path(__file__).with_name("agent_runner.py")
        self._started: list[subprocess.Popen[str]] = []
        self.runner = self._start(str(program), self._sockets[0])
        self._expect(self.runner, "offered")

    def agent(self) -> subprocess.Popen[str]:
        runner, serve = self._sockets
        command = ("-m", "blink_persistent.agent", "--runner", runner, "--serve", serve)
        agent = self._start(*command)
        self._expect(agent, "serving")
        return agent

    async def connect(self) -> RingSession:
        return await connect(VERSION, Endpoint("shm", {"socket": self._sockets[1]}))

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()

    def _start(self, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._started.append(process)
        return process

    @staticmethod
    def _expect(process: subprocess.Popen[str], said: str) -> None:
        assert process.stdout is not None
        assert said in process.stdout.readline()


@pytest.fixture
def machine(short_path: Path) -> Iterator[Machine]:
    machine = Machine(short_path)
    yield machine
    machine.close()


@contextlib.asynccontextmanager
async def streaming(session: RingSession) -> AsyncIterator[list[asyncio.Task[list[int]]]]:
    """Tasks that collect the tokens of 64 streams, once each has its first."""
    started = asyncio.Barrier(STREAMS + 1)

    async def collect(number: int) -> list[int]:
        asked = GenerateRequest(prompt_ids=[3 + number, 5, 7], max_tokens=TOKENS, ignore_eos=True)
        tokens: list[int] = []
        async for event in await session.submit(asked):
            if not tokens:
                await started.wait()
            tokens += event.token_ids
        return tokens

    async with asyncio.timeout(60):
        tasks = [asyncio.create_task(collect(number)) for number in range(STREAMS)]
        await started.wait()
        yield tasks
        answers = await asyncio.gather(*tasks)
    for number, tokens in enumerate(answers):
        assert tokens == _native.scripted_continuation(RULE, [3 + number, 5, 7], TOKENS)


async def test_streams_go_on_while_the_runner_is_stopped(machine: Machine) -> None:
    machine.agent()
    session = await machine.connect()
    async with streaming(session) as tasks:
        machine.runner.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, machine.runner.pid, os.WSTOPPED)
        assert not any(task.done() for task in tasks)
    machine.runner.send_signal(signal.SIGCONT)
    await session.close()


async def test_a_stopped_agent_delays_its_streams_and_nothing_else(machine: Machine) -> None:
    agent = machine.agent()
    session = await machine.connect()
    async with streaming(session) as tasks:
        agent.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, agent.pid, os.WSTOPPED)
        before = session.stats()
        await asyncio.sleep(2)  # what is measured: how far the GPU comes meanwhile
        assert not any(task.done() for task in tasks)
        agent.send_signal(signal.SIGCONT)
        assert before is not None
        while (now := session.stats()) is None or now.steps == before.steps:
            await asyncio.sleep(0)
        # All 600 tokens take 0.6 s: everything was generated while the agent stood still.
        assert now.steps >= TOKENS
    await session.close()


async def test_a_killed_agents_successor_serves_on(machine: Machine) -> None:
    agent = machine.agent()
    session = await machine.connect()
    asked = GenerateRequest(prompt_ids=[4], max_tokens=TOKENS, ignore_eos=True)
    streams = [await session.submit(asked) for _ in range(STREAMS)]
    await anext(aiter(streams[0]))
    agent.kill()
    agent.wait()
    await session.close()
    machine.agent()
    session = await machine.connect()
    async with streaming(session):
        pass
    await session.close()
