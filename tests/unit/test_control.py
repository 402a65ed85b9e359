from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blink_server.backend import Endpoint
from blink_server.control import RunnerChannel, RunnerEnvironment
from blink_server.control_server import ControlServer, Peer
from blink_server.errors import BlinkError
from blink_server.message_codec import MAX_LINE
from blink_server.messages import (
    FROM_RUNNER,
    Drain,
    Failed,
    Message,
    Progress,
    Ready,
    RegisterRunner,
    RegisterWorker,
    Stop,
)

READY = Ready(Endpoint("fake", {"socket": "/x"}), 5)


class Provisioner:
    """The server end, noting what runners say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: asyncio.Queue[Message] = asyncio.Queue()
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()
        self.server = ControlServer(path, on_runner=self.runner, on_worker=self.worker)

    async def runner(self, peer: Peer, registration: RegisterRunner) -> None:
        self.said.put_nowait(registration)
        self.peers.put_nowait(peer)
        async for message in peer.messages(FROM_RUNNER):
            self.said.put_nowait(message)

    async def worker(self, peer: Peer, registration: RegisterWorker) -> None:
        raise AssertionError("no worker connects here")

    async def hear(self) -> Message:
        return await asyncio.wait_for(self.said.get(), 10)


@pytest.fixture
async def provisioner(short_path: Path) -> AsyncIterator[Provisioner]:
    provisioner = Provisioner(short_path / "control.sock")
    await provisioner.server.start()
    yield provisioner
    await provisioner.server.close()


def channel(provisioner: Provisioner) -> RunnerChannel:
    path = provisioner.path
    return RunnerChannel(RunnerEnvironment(path, "m", 3, 2, path.parent, path.parent, path))


REGISTRATION = RegisterRunner("m", 3, 2, os.getpid())


async def test_a_runner_registers_reports_and_is_commanded(provisioner: Provisioner) -> None:
    runner = channel(provisioner)
    runner.start()
    assert await provisioner.hear() == REGISTRATION
    await asyncio.to_thread(runner.progress, "weights", 0.5)
    await asyncio.to_thread(runner.ready, READY.endpoint, READY.memory_bytes)
    assert await provisioner.hear() == Progress("weights", 0.5)
    assert await provisioner.hear() == READY
    peer = await provisioner.peers.get()
    commands = runner.commands()
    await peer.send(Drain(2.5))
    assert await asyncio.to_thread(next, commands) == Drain(2.5)
    await peer.send(Stop())
    assert await asyncio.to_thread(next, commands) == Stop()
    await asyncio.to_thread(runner.close)
    assert await asyncio.to_thread(list, commands) == []


async def test_a_runner_outlives_the_provisioner_and_repeats_itself_to_the_next(
    provisioner: Provisioner,
) -> None:
    runner = channel(provisioner)
    runner.start()
    assert await provisioner.hear() == REGISTRATION
    await asyncio.to_thread(runner.ready, READY.endpoint, READY.memory_bytes)
    assert await provisioner.hear() == READY
    await provisioner.server.close()
    successor = Provisioner(provisioner.path)
    await successor.server.start()
    assert await successor.hear() == REGISTRATION
    assert await successor.hear() == READY
    await asyncio.to_thread(runner.close)
    await successor.server.close()


async def test_failed_is_heard_although_said_before_the_connection(
    provisioner: Provisioner,
) -> None:
    runner = channel(provisioner)
    runner.start()
    await asyncio.to_thread(runner.failed, "no such file")
    await asyncio.to_thread(runner.close)
    assert await provisioner.hear() == REGISTRATION
    assert await provisioner.hear() == Failed("no such file")


async def test_progress_is_heard_although_told_before_the_connection(
    provisioner: Provisioner,
) -> None:
    runner = channel(provisioner)
    runner.progress("weights", 0.5)
    runner.progress("weights", 1.0)
    runner.start()
    assert await provisioner.hear() == REGISTRATION
    assert await provisioner.hear() == Progress("weights", 1.0)
    await asyncio.to_thread(runner.ready, READY.endpoint, READY.memory_bytes)
    await asyncio.to_thread(runner.progress, "graphs", 1.0)
    await asyncio.to_thread(runner.close)
    assert await provisioner.hear() == READY
    assert provisioner.said.empty(), "a version that is ready has no progress"


async def test_the_socket_is_its_users_alone(provisioner: Provisioner) -> None:
    assert stat.S_IMODE(provisioner.path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        (b"GET / HTTP/1.1\r\n", "not a line of JSON"),
        (b'{"type":"stop"}\n', "unexpected message 'stop'"),
        (b"x" * 100, "the connection ended within a line"),
        (b"x" * (2 * MAX_LINE + 2), f"a line is longer than {MAX_LINE} bytes"),
        (b'{"type":"register","role":"worker","pid":1}\n', "registered as process 1"),
    ],
)
async def test_garbage_closes_the_connection_and_is_logged_with_its_sender(
    provisioner: Provisioner, sent: bytes, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_unix_connection(str(provisioner.path))
    writer.write(sent)
    if not sent.endswith(b"\n"):
        writer.write_eof()
    with contextlib.suppress(ConnectionError):  # it may close before it has read everything
        assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    assert f"process {os.getpid()}: {named}" in caplog.text
    runner = channel(provisioner)
    runner.start()
    assert await provisioner.hear() == REGISTRATION
    await asyncio.to_thread(runner.close)


async def test_another_user_is_refused(
    provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    uid = os.geteuid()
    monkeypatch.setattr("blink_server.control_server.os.geteuid", lambda: uid + 1)
    reader, writer = await asyncio.open_unix_connection(str(provisioner.path))
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    assert f"user {uid} may not connect" in caplog.text


async def test_a_second_registration_is_no_message(
    provisioner: Provisioner, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_unix_connection(str(provisioner.path))
    line = {"type": "register", "role": "runner", "model": "m", "version": 3, "epoch": 2}
    writer.write(json.dumps(line | {"pid": os.getpid()}).encode() + b"\n" + b'{"type": 4}\n')
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    assert "unexpected message 4" in caplog.text


def test_the_environment_is_read_as_written(short_path: Path) -> None:
    environment = RunnerEnvironment(short_path, "m", 3, 2, short_path, short_path, short_path)
    assert RunnerEnvironment.read(environment.variables()) == environment
    incomplete = environment.variables()
    del incomplete["BLINK_RUNNER_EPOCH"]
    with pytest.raises(BlinkError, match="BLINK_RUNNER_EPOCH is not set"):
        RunnerEnvironment.read(incomplete)
    with pytest.raises(BlinkError, match="BLINK_RUNNER_EPOCH: invalid literal"):
        RunnerEnvironment.read(environment.variables() | {"BLINK_RUNNER_EPOCH": "x"})


def test_output_that_nobody_reads_any_more_does_no_harm() -> None:
    code = (
        "import sys\n"
        "from blink_server.control import _detach_from_dead_reader\n"
        "sys.stdin.read()\n"
        "_detach_from_dead_reader()\n"
        "print('still here', flush=True)\n"
        "print('and here', file=sys.stderr, flush=True)\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stderr.close()
        process.stdin.close()
    assert process.returncode == 0


async def test_a_stale_socket_file_is_replaced(short_path: Path) -> None:
    path = short_path / "control.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    provisioner = Provisioner(path)
    await provisioner.server.start()
    runner = channel(provisioner)
    runner.start()
    assert await provisioner.hear() == REGISTRATION
    await asyncio.to_thread(runner.close)
    await provisioner.server.close()
