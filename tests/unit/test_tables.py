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
