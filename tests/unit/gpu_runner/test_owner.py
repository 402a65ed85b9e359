"""When the process that owns a GPU ends."""

from __future__ import annotations

import shutil
import socket
import threading
from pathlib import Path

import pytest

from blink_persistent.gpu_runner.owner import Owner
from blink_persistent.gpu_runner.reach import GpuFiles, locked
from blink_persistent.gpu_runner.service import Service, Task
from blink_persistent.lines import listen


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
