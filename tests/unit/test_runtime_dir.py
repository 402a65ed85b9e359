from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blink_server.errors import BlinkError
from blink_server.process import ProcessId
from blink_server.runtime_dir import (
    living_processes,
    open_runtime_directory,
    read_record,
    write_record,
)


@pytest.fixture(autouse=True)
def base(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    return short_path / "blink-server"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def servers(base: Path) -> list[Path]:
    return [p for p in base.iterdir() if p.is_dir()]


def test_by_default_each_server_has_a_private_directory_and_removes_it(base: Path) -> None:
    first, second = open_runtime_directory(None), open_runtime_directory(None)
    assert first.path != second.path
    assert mode(first.path) == mode(base) == 0o700
    first.close()
    second.close()
    assert servers(base) == []


def test_directories_of_dead_servers_are_removed_unless_their_processes_live(base: Path) -> None:
    dead, orphaned = open_runtime_directory(None), open_runtime_directory(None)
    write_record(orphaned.new_runner_directory() / "runner.json", ProcessId.of(os.getpid()))
    write_record(dead.new_runner_directory() / "runner.json", ProcessId(os.getpid(), 1))
    dead.release()
    orphaned.release()
    current = open_runtime_directory(None)
    assert set(servers(base)) == {orphaned.path, current.path}
    current.close()


def test_one_directory_serves_one_server(short_path: Path) -> None:
    held = open_runtime_directory(short_path / "run")
    with pytest.raises(BlinkError, match=f"run: in use by the server {os.getpid()}"):
        open_runtime_directory(short_path / "run")
    held.close()
    assert not held.path.exists()


def test_a_dead_server_leaves_its_directory_to_a_successor(short_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "from blink_server.runtime_dir import open_runtime_directory\n"
        "open_runtime_directory(Path(sys.argv[1])).new_runner_directory(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, short_path / "run"], check=False)
    successor = open_runtime_directory(short_path / "run")
    assert [p.name for p in successor.runner_directories()] == ["runner-1"]
    assert successor.new_runner_directory().name == "runner-2"
    successor.close()


def test_a_directory_made_by_others_is_emptied_but_stays(short_path: Path) -> None:
    directory = short_path / "run"
    directory.mkdir(mode=0o700)
    runtime = open_runtime_directory(directory)
    runtime.new_runner_directory()
    runtime.close()
    assert list(directory.iterdir()) == []


def test_a_directory_with_other_files_is_refused_and_untouched(short_path: Path) -> None:
    directory = short_path / "home"
    directory.mkdir(mode=0o700)
    (directory / "thesis.txt").write_text("x")
    with pytest.raises(BlinkError, match="home: holds other files"):
        open_runtime_directory(directory)
    assert [p.name for p in directory.iterdir()] == ["thesis.txt"]


def test_a_directory_that_others_may_enter_is_refused(short_path: Path) -> None:
    directory = short_path / "open"
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)
    with pytest.raises(BlinkError, match=r"open: others may enter it \(mode 0755\)"):
        open_runtime_directory(directory)


def test_a_link_is_refused(short_path: Path) -> None:
    (short_path / "real").mkdir(mode=0o700)
    (short_path / "link").symlink_to(short_path / "real")
    with pytest.raises(BlinkError, match="link: must be a directory of this user"):
        open_runtime_directory(short_path / "link")


def test_a_path_too_long_for_sockets_is_refused_before_anything_is_made(short_path: Path) -> None:
    path = short_path / ("d" * 100)
    with pytest.raises(BlinkError, match=r"bytes too long .* give a shorter --runtime-dir"):
        open_runtime_directory(path)
    assert not path.exists()


def test_a_record_is_read_only_while_its_process_lives(short_path: Path) -> None:
    path = short_path / "http.json"
    assert read_record(path) is None
    own = ProcessId.of(os.getpid())
    write_record(path, own, port=8000)
    assert read_record(path) == (own, {"port": 8000})
    assert list(living_processes(short_path)) == [own]
    write_record(path, ProcessId(own.pid, own.start_ticks + 1), port=8000)
    assert read_record(path) is None
    path.write_text("[]")
    assert read_record(path) is None
