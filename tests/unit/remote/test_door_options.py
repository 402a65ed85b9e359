from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from blink_server.remote.door_options import DoorOptions, door_options


def parse(*arguments: str) -> tuple[Result, list[DoorOptions | None]]:
    """How a command with these options ends, and what it is given."""
    given: list[DoorOptions | None] = []

    @click.command()
    @door_options
    def command(door: DoorOptions | None) -> None:
        given.append(door)

    return CliRunner().invoke(command, arguments), given


def test_without_an_address_there_is_no_door() -> None:
    assert parse("--frontends-device=mlx5_0")[1] == [None]


@pytest.mark.parametrize("broken", ["--frontends-listen=", "--frontends-key-dir="])
def test_empty_text_opens_no_other_door_and_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.chdir(tmp_path)
    door = ["--frontends-listen=127.0.0.1:0", "--frontends-key-dir=keys"]
    result, given = parse(*door, "--frontends-device=mlx5_0", broken)
    assert given == []
    assert broken.removesuffix("=") in result.output + str(result.exception)
    assert list(tmp_path.iterdir()) == []
