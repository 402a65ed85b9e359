"""Programs for tests of frontends on other machines: a host, its frontends, and their clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blink_persistent.testing.file_gate import offer_in
from blink_persistent.testing.scripted_version import write_scripted_version
from blink_server.control_client import ask
from blink_server.model_rows import from_columns
from blink_server.remote.credentials import open_key_directory

SECONDS = 300.0  # longer than anything takes in a guest on a loaded machine
LONG = 100  # tokens: seconds of generation
STEP_MICROSECONDS = 20_000  # a token's; the guest can do little more in it


EXOTIC = """
from blink_server.hookspecs import hookimpl
from blink_server.text.tokenizers import HuggingFaceTokenizer

@hookimpl
def blink_tokenizers():
    return {"exotic": HuggingFaceTokenizer.load}
"""


class Program:
    """A `blink-server` command; `lines` is all that it and its children have written so far."""

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """`environment` is beside this process's."""
        self._arguments, self._environment = arguments, environment or {}
        self.lines: list[str] = []
        self._heard = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "blink_server", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **self._environment},
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def line(self, text: str, *, after: int = 0) -> str:
        """Wait for a line that contains `text`, not among the first `after` of `lines`."""
        deadline = time.monotonic() + SECONDS
        with self._heard:
            while True:
                for line in self.lines[after:]:
                    if text in line:
                        return line
                left = deadline - time.monotonic()
                if left <= 0 or not self._thread.is_alive():
                    raise AssertionError(f"no line with {text!r} in:\n" + "\n".join(self.lines))
                self._heard.wait(left)

    def children(self, needle: str) -> list[int]:
        """Its child processes with `needle` in their command lines."""
        found = []
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                with contextlib.suppress(OSError):
                    if needle.encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                        found.append(int(child))
        return found

    def again(self) -> Program:
        """The same once more."""
        return Program(*self._arguments, environment=self._environment)

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Its status, once it has ended."""
        return self._process.wait(SECONDS)

    def kill(self) -> None:
        """SIGKILL it, its children, and what those have started in their sessions."""
        if self._process.poll() is not None:
            return
        for pid in (*self.children(""), self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._heard:
                self.lines.append(line.rstrip())
                self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Return once it is so; for what nobody tells of."""
    deadline = time.monotonic() + SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"never: {what}")
        time.sleep(0.05)


@dataclass
class Started:
    """A host and two frontends that start."""

    repository: Path
    runtime: Path
    programs: list[Program]

    def kill(self) -> None:
        """End what is left of them."""
        for program in self.programs:
            program.kill()


def start(directory: Path, transport: str) -> Started:
    """Start a host with a scripted model, and two frontends that reach it by `rdma`, in the guest,
    or by `file`; then the host has a model, too, whose tokenizer they lack."""
    host_device, frontend_device = ("rxe1", "rxe0") if transport == "rdma" else ("any", "any")
    paths = [str(offer_in(directory / "path")), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(paths)}
    repository, runtime, plugins = (directory / n for n in ("models", "run", "plugins"))
    limits = {"slots": 1024, "max_rows": 16, "max_prefill_tokens": 512, "max_queue": 400}
    write_scripted_version(repository, limits=limits, step_microseconds=STEP_MICROSECONDS)
    if transport == "file":  # the guest is slow enough with one model
        exotic = write_scripted_version(repository, "exotic")
        config = json.loads((exotic / "config.json").read_text())
        (exotic / "config.json").write_text(json.dumps({**config, "tokenizer": {"name": "exotic"}}))
    plugins.mkdir(mode=0o700)
    (plugins / "exotic.py").write_text(EXOTIC)
    (plugins / "exotic.py").chmod(0o600)
    no_plugins = directory / "none"
    no_plugins.mkdir()
    open_key_directory(directory / "keys")
    with socket.create_server(("127.0.0.1", 0)) as free:
        door = f"127.0.0.1:{free.getsockname()[1]}"
    frontend = [
        *("frontend", f"--connect={door}", f"--token-file={directory}/keys/token", "--port=0"),
        *(f"--transport={transport}", f"--device={frontend_device}"),
        *(f"--cache-dir={directory}/cache", f"--plugin-dir={no_plugins}"),
    ]
    programs = [
        Program(
            *("serve", f"--model-repository={repository}", f"--runtime-dir={runtime}", "--port=0"),
            *("--settle-secs=0.1", f"--frontends-listen={door}", f"--plugin-dir={plugins}"),
            *(f"--frontends-key-dir={directory}/keys", f"--frontends-device={host_device}"),
            "--frontends-keep-secs=3",
            environment=environment,
        ),
        # They knock until the door is there.
        *(Program(*frontend, environment=environment) for _ in range(2)),
    ]
    return Started(repository, runtime, programs)


@dataclass
class Site:
    """A host and its frontends; `local` and `remote` are URLs."""

    repository: Path
    runtime: Path
    server: Program
    frontends: list[Program]
    local: str
    remote: list[str]
    killed: list[Program] = field(default_factory=list)

    def requests(self) -> int:
        """In flight at the host, from wherever."""
        answer = asyncio.run(ask(self.runtime / "control.sock", "index", usage=True))
        return sum(row.requests for row in from_columns(answer.rows))

    def serves(self, url: str, model: str) -> bool:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as reply:
            return model in [entry["id"] for entry in json.load(reply)["data"]]


class Stream:
    """A completion on a thread of its own, token by token."""

    def __init__(self, url: str, prompt: str, max_tokens: int = LONG) -> None:
        body = {"model": "scripted", "prompt": prompt, "max_tokens": max_tokens, "stream": True}
        self._request = urllib.request.Request(
            f"{url}/v1/completions",
            json.dumps({**body, "temperature": 0, "ignore_eos": True}).encode(),
            {"Content-Type": "application/json"},
        )
        self.text = ""
        self.finish = ""
        self.error = ""
        self.begun = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return at its end."""
        self._thread.join(120)
        assert not self._thread.is_alive(), "the stream never ended"

    def _run(self) -> None:
        try:
            with urllib.request.urlopen(self._request, timeout=120) as reply:
                for line in reply:
                    if line.startswith(b"data: {"):
                        self._take(json.loads(line[6:]))
        except OSError as error:
            self.error = str(error)
        self.begun.set()

    def _take(self, event: Mapping[str, Any]) -> None:
        if "error" in event:
            self.error = event["error"]["message"]
            return
        choice = event["choices"][0]
        self.text += choice["text"]
        self.finish = choice["finish_reason"] or self.finish
        self.begun.set()


def answer(url: str, prompt: str, max_tokens: int = 8) -> str:
    """A whole answer, for the comparison; raises where there is none."""
    stream = Stream(url, prompt, max_tokens)
    stream.wait()
    assert not stream.error, stream.error
    assert stream.finish == "length"
    return stream.text
