from __future__ import annotations

import pytest
from rich.console import Console

from blink_server import tables


def test_nothing_is_folded_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    shown = tables.table("name", "what")
    shown.add_row(tables.cell("n" * 60), tables.cell("[bold]w[/x]" * 60))
    tables.show(shown, tables.cell("reason [cuda] " * 60))
    _, row, reason = capsys.readouterr().out.splitlines()
    assert row.split() == ["n" * 60, "[bold]w[/x]" * 60]
    assert reason == "reason [cuda] " * 60


def test_cells_fold_on_a_terminal_and_keep_their_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(Console, "is_terminal", property(lambda console: True))
    shown = tables.table("name", "state", whole=("state",))
    shown.add_row(tables.cell("ab" * 60), tables.cell("UNAVAILABLE"))
    tables.show(shown)
    _, first, *rest = capsys.readouterr().out.splitlines()
    name, state = first.split()
    assert state == "UNAVAILABLE"
    assert "".join((name, *(line.strip() for line in rest))) == "ab" * 60


def test_nothing_that_is_shown_controls_the_terminal() -> None:
    assert (
        tables.printable("\x1b]0;title\x07 \x9b2J\r\t\x7f")
        == r"\x1b]0;title\x07 \x9b2J\x0d\x09\x7f"
    )
    assert tables.cell("\x1b[2Jname").plain == r"\x1b[2Jname"


def test_text_stays_as_it_is() -> None:
    assert tables.printable("naïve 你好 😀\nnext") == "naïve 你好 😀\nnext"
    assert tables.printable("\udcff") == r"\udcff"
