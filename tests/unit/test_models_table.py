"""What `blink-server models` shows of rows, at the width of a terminal."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from blink_server.model_rows import ModelRow
from blink_server.models_table import picture

WIDTH = 80
LONG = "organisation-model-name-of-a-family-instruct-int8-cuda-sm_90"
REASON = (
    "/srv/model_repository/echo/1/config.json: engine.name: is 'cuda[/x]'; no plugin offers this "
    "engine; pip install 'blink-server[cuda]'"
)


@pytest.fixture(autouse=True)
def noon(monkeypatch: pytest.MonkeyPatch) -> float:
    """The time now is noon of a day."""
    noon = time.mktime((2026, 3, 4, 12, 0, 0, 0, 0, -1))
    here = time.localtime
    monkeypatch.setattr(time, "localtime", lambda at=noon: here(at))
    return noon


def lines(*rows: ModelRow) -> list[str]:
    output = io.StringIO()
    console = Console(file=output, width=WIDTH, force_terminal=True, color_system=None)
    for part in picture(rows):
        console.print(part)
    shown = [line.rstrip() for line in output.getvalue().splitlines()]
    assert all(len(line) <= WIDTH for line in shown)
    return shown


def test_brackets_are_data() -> None:
    told = lines(ModelRow("echo", 1, "[/]", REASON))
    assert "[/]" in told[1].split()
    assert " ".join(told[2:]) == f"echo:1: {REASON}"


def test_names_fold_and_states_and_dates_stay_whole(noon: float) -> None:
    yesterday = ModelRow(LONG, 1, "UNAVAILABLE", since=noon - 86400, requests=123, load_seconds=999)
    today = ModelRow("tiny", 12, "READY", since=noon - 3723, load_seconds=1.25)
    _, first, *rest = lines(yesterday, today)
    *folded, last = rest
    name, number, *cells = first.split()
    assert [number, *cells] == ["1", "UNAVAILABLE", "2026-03-03", "12:00", "123", "999.0", "s"]
    assert "".join((name, *folded)) == LONG
    assert last.split() == ["tiny", "12", "READY", "10:57:57", "0", "1.2", "s"]


def test_a_model_without_a_version_has_a_row_and_a_reason() -> None:
    _, row, *reason = lines(ModelRow("empty", 0, "UNAVAILABLE", "has no version"))
    assert row.split() == ["empty", "-", "UNAVAILABLE", "-", "0", "-"]
    assert reason == ["empty: has no version"]


def test_a_name_that_is_no_text_is_shown_with_escapes() -> None:
    _, row, reason = lines(ModelRow("a\udcff", 0, "UNAVAILABLE", "a\udcff is no name"))
    assert row.startswith(r"a\udcff ")
    assert reason == r"a\udcff: a\udcff is no name"
