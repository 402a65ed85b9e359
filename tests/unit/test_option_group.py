from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from blink_server.option_group import AbsolutePath, option, option_group


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    most: int = option("--most", default=16, type=click.IntRange(min=1), help="How many.")
    name: str = option("--named", default="")
    note: str | None = option("--note")
    flag: bool = option("--flag/--no-flag", default=True)
    quiet: bool = option("--quiet", is_flag=True, default=False)
    file: str | None = option("--file", type=AbsolutePath(allow_dash=True))
    facts: list[int] = field(default_factory=lambda: [5])


def parse(*arguments: str) -> tuple[Group, int]:
    """What a command with the group, and an option of its own, is given."""
    given: list[tuple[Group, int]] = []

    @click.command()
    @click.option("--port", type=int, default=5)
    @option_group(Group, "group")
    def command(port: int, group: Group) -> None:
        given.append((group, port))

    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return given[0]


def test_what_is_not_given_is_as_the_dataclass_has_it() -> None:
    assert parse() == (Group(), 5)
    assert Group().facts == [5]


def test_what_is_given_is_in_its_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("elsewhere")  # may come to lead to another file: it is kept
    given = ("--most=3", "--named=a", "--note=b", "--no-flag", "--quiet", "--file=link", "--port=7")
    expected = Group(
        most=3, name="a", note="b", flag=False, quiet=True, file=str(tmp_path / "link")
    )
    assert parse(*given) == (expected, 7)
    assert parse("--file", "-") == (Group(file="-"), 5)


def test_an_empty_path_is_refused() -> None:
    @click.command()
    @option_group(Group, "group")
    def command(group: Group) -> None: ...

    result = CliRunner().invoke(command, ["--file="])
    assert result.exit_code == 2
    assert "Invalid value for '--file': must not be empty" in result.output


def test_the_command_gets_what_is_finally_made_of_them() -> None:
    given: list[object] = []

    @click.command()
    @option_group(Group, "most", lambda group: group.most + 1)
    def command(most: int) -> None:
        """What it does."""
        given.append(most)

    CliRunner().invoke(command, ["--most=3"], catch_exceptions=False)
    assert given == [4]
    assert (command.name, command.help) == ("command", "What it does.")


def test_the_help_shows_the_default_and_keeps_the_order() -> None:
    @click.command()
    @option_group(Group, "group")
    def command(group: Group) -> None: ...

    lines = CliRunner().invoke(command, ["--help"]).output
    assert "[default: 16; x>=1]" in lines
    assert "[default: flag]" in lines
    assert lines.count("default:") == 2
    names = ["--most", "--named", "--note", "--flag", "--quiet", "--file"]
    assert sorted(names, key=lines.index) == names
