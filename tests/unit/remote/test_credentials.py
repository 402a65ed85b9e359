from __future__ import annotations

import stat
from pathlib import Path

import pytest

from blink_server.errors import BlinkError
from blink_server.remote import credentials
from blink_server.remote.credentials import door_context, open_key_directory, read_token_file


def test_they_are_made_once_and_are_private(keys: Path) -> None:
    made = open_key_directory(keys)
    assert made == open_key_directory(keys) == read_token_file(keys / "token")
    assert len(made.token) >= 40
    assert made.token not in repr(made)
    for name in ("token", "key.pem"):
        assert stat.S_IMODE((keys / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    door_context(keys)


@pytest.mark.parametrize("text", ["abc\n", "sha256:00\n", "a\nb\nsha256:00\n"])
def test_a_file_that_is_no_token_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(BlinkError, match=f"token file {path}: must hold a token and a line sha256"):
        read_token_file(path)


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BlinkError, match=r"TLS certificate .*/certificate\.pem: No such file"):
        door_context(tmp_path)


def test_without_openssl_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BlinkError, match="no openssl here"):
        open_key_directory(tmp_path / "keys")
    assert not (tmp_path / "keys" / "token").exists()
    monkeypatch.undo()
    assert credentials.open_key_directory(tmp_path / "keys").fingerprint.startswith("sha256:")
