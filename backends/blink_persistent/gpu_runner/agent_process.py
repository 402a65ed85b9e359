"""The agent of a ring in GPU memory, as a child of the process that owns the GPU."""

from __future__ import annotations

import json
import logging
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

from blink_server.errors import EngineFailure
from blink_server.process import Exit

log = logging.getLogger(__name__)

_SERVING_SECONDS = 60.0
_END_SECONDS = 5.0


class AgentProcess:
    """One agent; another may be made over the same ring once it has ended."""

    def __init__(self, name: str, offer_socket: Path, serve_socket: Path) -> None:
        """Start it. `name` is for the log."""
        self._name = name
        self._last_line = ""
        sockets = ("--runner", str(offer_socket), "--serve", str(serve_socket))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "blink_persistent.agent", *sockets],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stderr is not None
        self._lines = threading.Thread(
            target=self._follow, args=(self._process.stderr,), name=f"{name} agent", daemon=True
        )
        self._lines.start()

    def wait_until_serving(self) -> None:
        """Return when workers may connect. Raises EngineFailure where it ends before."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], _SERVING_SECONDS)
        line = self._process.stdout.readline() if readable else b""
        if line and json.loads(line).get("type") == "serving":
            return
        ended = self.ended() if not readable else self._wait(_END_SECONDS)
        self.close()
        raise EngineFailure(f"its agent: {ended or 'it does not serve'}")

    def ended(self) -> str:
        """How it has ended, "" while it lives."""
        return "" if self._process.poll() is None else self._wait(_END_SECONDS)

    def close(self) -> None:
        """End it, and wait until none of its words can land in the ring any more."""
        self._process.terminate()
        if not self._wait(_END_SECONDS):
            self._process.kill()
            self._process.wait()
            self._lines.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _wait(self, seconds: float) -> str:
        """How it has ended; "" where it has not in that time."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return ""
        self._lines.join(seconds)
        return str(Exit(code, self._last_line))

    def _follow(self, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                if text:
                    self._last_line = text
                    log.info("%s agent: %s", self._name, text)
