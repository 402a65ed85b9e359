"""The command, against a server that plays a recorded feed."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from blink_server.top.watch import Watch

FEED = (Path(__file__).parent / "feed.txt").read_bytes()
SECONDS = 30


class Player(ThreadingHTTPServer):
    """Plays the recording to each who has the key, and holds the connection until let go."""

    daemon_threads = True

    def __init__(self) -> None:
        self.keys: list[str | None] = []
        self.status = 200
        self.over = threading.Event()
        super().__init__(("127.0.0.1", 0), _Play)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Play(BaseHTTPRequestHandler):
    server: Player

    def do_GET(self) -> None:
        assert self.path == "/console/events"
        self.server.keys.append(self.headers["Authorization"])
        self.send_response(self.server.status)
        self.end_headers()
        if self.server.status == 200:
            self.wfile.write(FEED + b"\n")
            self.wfile.flush()
            self.server.over.wait(SECONDS)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def player() -> Iterator[Player]:
    with Player() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.over.set()
        server.shutdown()
        thread.join()


def top(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "blink_server", "top", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


def test_one_frame_for_scripts(player: Player, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\nsecond\n")
    keys.chmod(0o600)
    done = top("--once", f"--url={player.url}/", f"--api-key-file={keys}")
    assert done.returncode == 0, done.stderr
    assert "tiny:1  READY" in done.stdout
    assert "\x1b" not in done.stdout
    assert player.keys == ["Bearer secret"]


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (401, "asks for an API key: --api-key-file"),
        (404, "has no console"),
        (503, "answers with status 503"),
    ],
)
def test_refusals_are_one_line(player: Player, status: int, told: str) -> None:
    player.status = status
    done = top("--once", f"--url={player.url}")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_server_and_no_terminal() -> None:
    done = top("--once", "--url=http://127.0.0.1:9")
    assert (done.returncode, "http://127.0.0.1:9 cannot be reached" in done.stderr) == (1, True)
    done = top("--once", "--url=nowhere")
    assert (done.returncode, "nowhere" in done.stderr) == (1, True)
    done = top()
    assert (done.returncode, "--once" in done.stderr) == (1, True)


def test_q_leaves_the_terminal_as_it_was(player: Player) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "blink_server", "top", f"--url={player.url}"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "60", "LINES": "30"},
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    while b"slots" not in shown:
        assert select.select([ours], [], [], SECONDS)[0], shown
        shown += os.read(ours, 65536)
    os.write(ours, b"q")
    while chunk := _read(ours):
        shown += chunk
    assert process.wait(SECONDS) == 0
    os.close(ours)
    assert shown.rindex(b"\x1b[?1049h") < shown.rindex(b"\x1b[?1049l")  # the screen is given back


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # how Linux says that the other side has closed
        return b""


def until(condition: Callable[[], bool], changed: threading.Condition) -> None:
    with changed:
        assert changed.wait_for(condition, SECONDS)


def test_a_lost_connection_is_made_again(player: Player) -> None:
    changed = threading.Condition()

    class Observed(Watch):
        states = losses = 0

        def apply(self, name: str, payload: dict[str, object]) -> None:
            super().apply(name, payload)
            with changed:
                self.states += name == "state"
                changed.notify()

        def _lose(self, trouble: str) -> None:
            super()._lose(trouble)
            with changed:
                self.losses += 1
                changed.notify()

    watch, ended = Observed(player.url), threading.Event()
    follower = threading.Thread(target=watch.follow, args=(None, ended))
    follower.start()
    until(lambda: watch.states == 1, changed)
    player.over.set()
    until(lambda: watch.losses > 0 and watch.states > 1, changed)
    ended.set()
    follower.join(SECONDS)
    assert not follower.is_alive()
