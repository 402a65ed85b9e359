from __future__ import annotations

from pathlib import Path

import pytest

from blink_server.api_keys import read_api_keys
from blink_server.errors import BlinkError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    return path


def test_keys_are_lines_without_comments_and_spaces_around(file: Path) -> None:
    file.write_text("# mine\n  one \n\ntwo#2\r\n")
    assert read_api_keys(file) == ["one", "two#2"]


@pytest.mark.parametrize("text", ["", "\n# only a comment\n"])
def test_a_file_without_keys_is_refused(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(BlinkError, match="keys: holds no key"):
        read_api_keys(file)


def test_a_key_with_a_space_is_refused_by_its_line_and_not_shown(file: Path) -> None:
    file.write_text("fine\nnot fine\n")
    with pytest.raises(BlinkError, match="line 2: a key has no spaces") as caught:
        read_api_keys(file)
    assert "not fine" not in str(caught.value)


def test_a_file_that_others_may_write_is_refused(file: Path) -> None:
    file.write_text("key\n")
    file.chmod(0o620)
    with pytest.raises(BlinkError, match=r"others may write it \(mode 0620\)"):
        read_api_keys(file)


def test_a_missing_or_binary_file_is_named(file: Path) -> None:
    with pytest.raises(BlinkError, match="none: No such file"):
        read_api_keys(file.with_name("none"))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(BlinkError, match="keys: is not UTF-8"):
        read_api_keys(file)
