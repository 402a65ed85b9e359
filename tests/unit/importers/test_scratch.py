"""Working directories of the living stay, those of the dead go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from blink_server.importers.scratch import scratch_directory

OWNER = """
import sys
from pathlib import Path
from blink_server.importers.scratch import scratch_directory
with scratch_directory(Path(sys.argv[1]), ".s-") as work:
    (work / "file").write_text("data")
    print(work, flush=True)
    sys.stdin.read()
"""


def start_owner(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    return owner, Path(owner.stdout.readline().strip())


def test_the_directory_is_gone_afterwards_whatever_happened(tmp_path: Path) -> None:
    with scratch_directory(tmp_path, ".s-") as work:
        (work / "file").write_text("data")
        assert work.parent.parent == tmp_path
        assert work.parent.name.startswith(".s-")
    assert list(tmp_path.iterdir()) == []

    def interrupted() -> None:
        with scratch_directory(tmp_path, ".s-") as work:
            (work / "file").write_text("data")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_what_was_renamed_out_of_it_stays(tmp_path: Path) -> None:
    with scratch_directory(tmp_path, ".s-") as work:
        (work / "file").write_text("data")
        work.rename(tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").read_text() == "data"


def test_a_living_owners_directory_is_left_alone_and_a_killed_ones_removed(tmp_path: Path) -> None:
    owner, work = start_owner(tmp_path)
    with owner:
        with scratch_directory(tmp_path, ".s-") as mine:
            assert (work / "file").read_text() == "data"
            assert mine != work

        owner.kill()
        owner.wait()
        assert work.exists()
        with scratch_directory(tmp_path, ".s-"):
            assert not work.parent.exists()
    assert list(tmp_path.iterdir()) == []


def test_an_owner_killed_before_it_had_a_lock_is_cleaned_up_too(tmp_path: Path) -> None:
    (tmp_path / ".s-early").mkdir()
    (tmp_path / ".s-file").write_text("not ours")
    (tmp_path / ".other").mkdir()
    with scratch_directory(tmp_path, ".s-"):
        assert not (tmp_path / ".s-early").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other", ".s-file"]
