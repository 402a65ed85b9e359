"""A runner on the GPU, its agent and a worker: three processes, joined by CUDA IPC and shared
memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

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
SHAPE: dict[str, Any] = {
    "ranges": 2, "max_rows": 64, "max_sequences": 8, "max_prefill_tokens": 512,
    "context_length": 640, "block_size": 16, "block_count": 64 * 40 + 1,
}  # fmt: skip
RULE = ScriptedShape(**SHAPE).rule


class Machine:
    """The runner, and one agent after another."""

    def __init__(self, directory: Path) -> None:
        self._sockets = [str(directory / name) for name in ("runner.sock", "agent.sock")]
        program = Path(__file__).with_name("agent_runner.py")
        self._started: list[subprocess.Popen[str]] = []
        asked = json.dumps({"shape": SHAPE, "step_ns": 1_000_000})
        self.runner = self._start(str(program), asked, self._sockets[0])
        assert self.runner.stdout is not None
        assert self.runner.stdout.readline()

    def agent(self) -> subprocess.Popen[str]:
        runner, serve = self._sockets
        command = ("-m", "blink_persistent.agent", "--runner", runner, "--serve", serve)
        agent = self._start(*command)
        assert agent.stdout is not None
        assert "serving" in agent.stdout.readline()
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


@pytest.fixture
def machine(short_path: Path) -> Iterator[Machine]:
    machine = Machine(short_path)
    yield machine
    machine.close()


def stop(process: subprocess.Popen[str]) -> None:
    """SIGSTOP, and return when it has stopped."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


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
        stop(machine.runner)
        assert not any(task.done() for task in tasks)
    machine.runner.send_signal(signal.SIGCONT)
    await session.close()


async def test_a_stopped_agent_delays_its_streams_and_nothing_else(machine: Machine) -> None:
    agent = machine.agent()
    session = await machine.connect()
    async with streaming(session) as tasks:
        stop(agent)
        before = session.stats()
        await asyncio.sleep(2)  # what is measured: how far the GPU comes meanwhile
        assert not any(task.done() for task in tasks)
        agent.send_signal(signal.SIGCONT)
        assert before is not None
        while (now := session.stats()) is None or now.steps == before.steps:  # noqa: ASYNC110
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
