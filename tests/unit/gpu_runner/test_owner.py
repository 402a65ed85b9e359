"""When the process that owns a GPU ends."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blink_persistent.gpu_runner.owner import Owner
from blink_persistent.gpu_runner.reach import GpuFiles, locked
from blink_persistent.gpu_runner.service import Service, Task
from blink_persistent.lines import LineSocket, listen
from blink_persistent.thread_names import helper_name
from blink_server.control import RunnerEnvironment


def connected(files: GpuFiles) -> socket.socket:
    """A link that has been taken in."""
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(30)
    link.connect(str(files.socket))
    assert b"hello" in link.recv(4096)
    return link


def no_service(task: Task, progress: object) -> Service:
    raise AssertionError("no version is asked for")


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("folder_goes", [True, False])
def test_it_ends_with_its_last_link(short_path: Path, linked: bool, folder_goes: bool) -> None:
    """Also where its server's folder has been removed meanwhile."""
    directory = short_path / "run"
    directory.mkdir()
    files = GpuFiles(directory, 0)
    with listen(files.socket) as listener:
        owner = Owner(files, listener, no_service)
        with locked(files.lock):  # it may not leave yet
            running = threading.Thread(target=owner.run, daemon=True)
            running.start()
            link = connected(files) if linked else None
        if folder_goes:  # at once: its files go while nobody makes others
            shutil.rmtree(directory.rename(short_path / "gone"))
        if link is not None:
            link.close()
        running.join(30)
        assert not running.is_alive()
        assert not files.socket.exists()


def load(link: LineSocket, version: int) -> None:
    folder = Path("runner")
    environment = RunnerEnvironment(Path("s"), "m", version, 1, folder, folder, folder / "c.json")
    about = {"threads": 1, "scheduler": None, "host_ranges": None}
    link.send({"type": "load", "environment": environment.variables(), **about})


def heard(link: LineSocket, kind: str) -> list[str]:
    """Lines of the log, up to a message of this kind."""
    lines = list[str]()
    while (message := link.first())["type"] != kind:
        if message["type"] == "log":
            lines.append(message["line"])
    return lines


def test_a_line_of_the_log_goes_to_the_version_it_is_about(short_path: Path) -> None:
    """Also from a thread that works for a version; what is nobody's goes to all."""
    files = GpuFiles(short_path, 0)

    def make_service(task: Task, progress: Callable[[str, float], None]) -> Service:
        version = task.environment.version
        with ThreadPoolExecutor(1, helper_name("capture")) as capturing:
            capturing.submit(owner.log_line, f"graphs of {version}").result()
        owner.log_line(f"loaded {version}")
        raise MemoryError(f"no room for {version}")

    with listen(files.socket) as listener:
        owner = Owner(files, listener, make_service)
        running = threading.Thread(target=owner.run, daemon=True)
        with locked(files.lock):
            running.start()
            links = {version: LineSocket(connected(files)) for version in (1, 2)}
            owner.log_line("for all")
            for version, link in links.items():
                load(link, version)
                lines = ["for all", f"graphs of {version}", f"loaded {version}"]
                assert heard(link, "failed")[:3] == lines
        for link in links.values():
            link.close()
        running.join(30)
        assert not running.is_alive()
