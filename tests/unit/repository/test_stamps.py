from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from blink_server.config import load_model_config
from blink_server.repository.stamps import read_stamp
from blink_server.testing.fake_repository import write_fake_version
from blink_server.testing.tiny_repository import write_json


def content(directory: Path) -> str:
    return read_stamp(directory).content(load_model_config(directory))


def edit_config(directory: Path, **changes: object) -> None:
    write_json(directory / "config.json", {**load_model_config(directory), **changes})


def touch_older(directory: Path) -> None:
    os.utime(directory / "tokenizer.json", (1e9, 1e9))


def swap_same_size_and_time(directory: Path) -> None:
    tokenizer = directory / "tokenizer.json"
    status = tokenizer.stat()
    (directory / "other").write_bytes(bytes(status.st_size))
    os.utime(directory / "other", ns=(status.st_atime_ns, status.st_mtime_ns))
    (directory / "other").replace(tokenizer)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: (d / "model.onnx").write_bytes(b"other weights"),
        lambda d: (d / "model.onnx").unlink(),
        lambda d: (d / "deep").mkdir() or (d / "deep" / "part").write_bytes(b"1"),
        lambda d: edit_config(d, limits={"context_length": 100}),
        touch_older,
        swap_same_size_and_time,
    ],
)
def test_what_a_load_reads_makes_the_content(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    directory = write_fake_version(tmp_path)
    before = content(directory)
    change(directory)
    assert content(directory) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda d: (d / ".config.json.swp").write_text("vim"),
        lambda d: (d / "config.json~").write_text("emacs"),
        lambda d: (d / "#config.json#").write_text("emacs"),
        lambda d: (d / "__pycache__").mkdir() or (d / "__pycache__" / "x.pyc").write_text(""),
        lambda d: (d / ".git").mkdir() or (d / ".git" / "HEAD").write_text("ref"),
        lambda d: edit_config(d, default_sampling={"temperature": 0.5}),
        lambda d: edit_config(d, limits={"context_length": 512, "max_queue": 7}),
        lambda d: (d / "config.json").write_text((d / "config.json").read_text() + "\n"),
        lambda d: (d / "model.onnx").chmod(0o600),
    ],
)
def test_noise_and_settings_leave_it_as_it_is(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    directory = write_fake_version(tmp_path)
    before = content(directory)
    change(directory)
    assert content(directory) == before


def test_links_count_as_what_they_lead_to(tmp_path: Path) -> None:
    for release in ("a", "b"):
        write_fake_version(tmp_path / release)
    link = tmp_path / "1"
    link.symlink_to(tmp_path / "a" / "echo" / "1")
    before = read_stamp(link)
    (tmp_path / "next").symlink_to(tmp_path / "b" / "echo" / "1")
    (tmp_path / "next").replace(link)
    assert read_stamp(link).directory != before.directory
    (tmp_path / "b" / "echo" / "1" / "nowhere").symlink_to("missing")
    assert "nowhere" not in {file.name for file in read_stamp(link).files}


def test_what_is_not_there_has_no_files(tmp_path: Path) -> None:
    assert read_stamp(tmp_path / "gone").files == ()
