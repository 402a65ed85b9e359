"""The demo, with a tiny model: it answers, stays or goes as told, and fails without a trace."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blink_server.process import ProcessId
from blink_server.runtime_dir import living_processes
from blink_server.testing.reserved_port import reserve_port
from blink_server.testing.server_process import processes
from blink_server.testing.tiny_gguf import write_tiny_gguf

DEMO = Path(__file__).parents[2] / "tools" / "demo.py"


class Demo:
    """`tools/demo.py` with a state folder, repository and runtime directory of its own."""

    def __init__(self, path: Path) -> None:
        self.state = path / "state"
        self.repository = path / "repository"
        self.runtime = path / "runtime"
        self.runtime.mkdir(mode=0o700)
        self._gguf = path / "tiny.gguf"
        write_tiny_gguf(self._gguf)
        self.reserved = reserve_port()
        self.port = self.reserved.getsockname()[1]

    def __call__(self, *arguments: str, status: int = 0) -> str:
        finished = subprocess.run(
            [sys.executable, str(DEMO), *arguments, f"--state={self.state}"],
            env=os.environ | {"TMPDIR": str(self.runtime)},
            capture_output=True,
            text=True,
        )
        assert finished.returncode == status, finished.stdout + finished.stderr
        return finished.stdout + finished.stderr

    def run(self, *arguments: str, status: int = 0) -> str:
        return self(
            *("run", f"--port={self.port}", f"--gguf={self._gguf}", "--name=tiny"),
            *(f"--model-repository={self.repository}", *arguments),
            status=status,
        )

    def server(self) -> ProcessId:
        record = json.loads((self.state / "demo.json").read_text())
        return ProcessId(record["pid"], record["start_ticks"])

    def assert_nothing_runs(self) -> None:
        assert {path.name for path in self.state.glob("*")} <= {"demo.log"}
        assert list(self.runtime.glob("blink-demo-*")) == []
        assert processes(self.runtime) == []
        socket.create_server(("127.0.0.1", self.port)).close()


@pytest.fixture
def demo(short_path: Path) -> Iterator[Demo]:
    demo = Demo(short_path)
    yield demo
    demo("stop")
    demo.reserved.close()


def complete(demo: Demo) -> Any:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 3, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{demo.port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)


def test_the_server_answers_and_stays_until_it_is_stopped(demo: Demo) -> None:
    said = demo.run()
    assert "time to first token" in said
    assert "tokens/s" in said
    assert f"curl -N http://127.0.0.1:{demo.port}/v1/chat/completions" in said
    server = demo.server()
    assert server.alive
    assert complete(demo)["usage"]["completion_tokens"] == 3
    assert str(server.pid) in demo("stop")
    assert not server.alive
    demo.assert_nothing_runs()
    assert "no demo server" in demo("stop")


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_second_run_says_that_the_first_still_serves(demo: Demo, elsewhere: bool) -> None:
    demo.run()
    server = demo.server()
    another = ["--port=1"] if elsewhere else []
    said = demo.run(*another, status=1)
    assert f"process {server.pid} on port {demo.port}: make stop ends it" in said
    assert server.alive
    assert str(server.pid) in demo("stop")
    demo.assert_nothing_runs()


@pytest.mark.slow
def test_what_a_killed_server_leaves_behind_is_found_and_stopped(demo: Demo) -> None:
    demo.run()
    server = demo.server()
    left = list(living_processes(demo.state / "runtime"))
    assert len(left) == 2
    pidfd = os.pidfd_open(server.pid)
    os.kill(server.pid, signal.SIGKILL)
    assert select.select([pidfd], [], [], 30)[0]
    os.close(pidfd)
    assert all(process.alive for process in left)

    said = demo.run(status=1)
    assert "a demo server that was killed has left" in said
    assert "make stop ends them" in said
    said = demo("stop")
    assert all(str(process.pid) in said for process in left)
    assert not any(process.alive for process in left)
    demo.assert_nothing_runs()


def test_exit_leaves_nothing_running_and_keeps_the_model(demo: Demo) -> None:
    assert "importing" in demo.run("--exit")
    demo.assert_nothing_runs()
    assert "is there already" in demo.run("--exit")
    demo.assert_nothing_runs()


def test_a_port_in_use_is_named_with_a_way_out_before_anything_is_done(demo: Demo) -> None:
    with socket.create_server(("127.0.0.1", demo.port)):
        said = demo.run(status=1)
    assert f"127.0.0.1:{demo.port}: the port is in use" in said
    assert f"make demo PORT={demo.port + 1}" in said
    assert not demo.repository.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda version: (version / "model.onnx").write_bytes(b"no model"), "model.onnx"),
        (lambda version: (version / "tokenizer.json").unlink(), "tokenizer.json"),
    ],
)
def test_a_model_that_cannot_be_served_fails_with_its_reason_and_leaves_nothing(
    demo: Demo, damage: Callable[[Path], object], reason: str
) -> None:
    demo.run("--exit")
    damage(demo.repository / "tiny" / "1")
    said = demo.run(status=1)
    assert "the server is up without the model" in said
    assert reason in said
    demo.assert_nothing_runs()


def test_a_file_that_cannot_be_imported_fails_before_a_server_starts(demo: Demo) -> None:
    bad = demo.state.with_name("bad.gguf")
    bad.write_bytes(b"no model at all")
    said = demo.run(f"--gguf={bad}", status=1)
    assert "bad.gguf" in said
    demo.assert_nothing_runs()
