"""Programs, and what tests in the guest know of it; see tests/rdma/run.sh."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from blink_persistent.testing.scripted_shape import ScriptedShape

HOST_DEVICE, FRONTEND_DEVICE = "rxe1", "rxe0"
HOST_LINK = "rdma1"  # the network interface below the host's device
SECONDS = 120.0  # longer than anything takes in a guest on a loaded machine
SHAPE = ScriptedShape(ranges=3, max_rows=8, epoch=5)


class Program:
    """A `blink-server` command; `lines` is all that it and its children have written so far."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self.lines: list[str] = []
        self._heard = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "blink_server", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

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
        return Program(*self._arguments)

    def stop(self) -> int:
        """SIGTERM, and wait; its status."""
        self._process.send_signal(signal.SIGTERM)
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


def set_link(state: str) -> None:
    """The host's network interface "up" or "down"."""
    subprocess.run(["ip", "link", "set", HOST_LINK, state], check=True)
