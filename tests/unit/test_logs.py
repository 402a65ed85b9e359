"""Log lines: their two forms, their request's id, what runners write, and their level."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Iterator

import pytest

from blink_server.logs import (
    FORM_VARIABLE,
    LEVEL_VARIABLE,
    RUNNER_FORMAT,
    configure_logging,
    current_request_id,
    pass_on,
    set_level,
)

log = logging.getLogger("blink_server.test")


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The root logger and the environment as they were."""
    monkeypatch.setenv(LEVEL_VARIABLE, "info")
    monkeypatch.setenv(FORM_VARIABLE, "human")
    root, ours = logging.getLogger(), logging.getLogger("blink_server")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def written(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_people_read_time_level_and_request(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    token = current_request_id.set("req-1")
    log.warning("slow: %d ms", 7)
    log.warning("request %s is slow", "req-1")
    current_request_id.reset(token)
    log.info("idle")
    first, second, third = written(capsys)
    assert first.endswith("WARNING slow: 7 ms [request req-1]")
    assert second.endswith("WARNING request req-1 is slow")
    assert third.endswith("INFO    idle")


def test_machines_read_one_object_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORM_VARIABLE, "json")
    configure_logging()
    token = current_request_id.set("req-1")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("it failed")
    current_request_id.reset(token)
    [line] = written(capsys)
    entry = json.loads(line)
    assert (entry["level"], entry["message"]) == ("error", "it failed")
    assert (entry["logger"], entry["request_id"]) == ("blink_server.test", "req-1")
    assert entry["process"] == os.getpid()
    assert "ValueError: two\nlines" in entry["exception"]


def test_what_python_warns_of_is_a_line_like_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORM_VARIABLE, "json")
    with warnings.catch_warnings():
        warnings.resetwarnings()
        configure_logging()
        warnings.warn("old", RuntimeWarning, stacklevel=1)
        logging.captureWarnings(False)
    [line] = written(capsys)
    entry = json.loads(line)
    assert (entry["logger"], entry["level"]) == ("py.warnings", "warning")
    assert "RuntimeWarning: old" in entry["message"]


def test_a_runner_s_lines_keep_their_level(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORM_VARIABLE, "json")
    configure_logging()
    record = logging.LogRecord("part", logging.ERROR, "", 0, "broken", None, None)
    for line in (logging.Formatter(RUNNER_FORMAT).format(record), "INFO part: fine", "Traceback:"):
        pass_on("tiny:1", line)
    entries = [json.loads(line) for line in written(capsys)]
    assert [entry["level"] for entry in entries] == ["error", "info", "warning"]
    assert {entry["runner"] for entry in entries} == {"tiny:1"}
    assert entries[0]["message"] == "[tiny:1] ERROR part: broken"


def test_the_level_changes_at_once_and_for_what_is_started_later(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging()
    set_level("error")
    log.warning("not told")
    set_level("debug")
    log.debug("told")
    logging.getLogger("library").info("not told")
    [line] = written(capsys)
    assert line.endswith("DEBUG   told")
    assert os.environ[LEVEL_VARIABLE] == "debug"


def test_libraries_are_no_louder_than_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    library = logging.getLogger("some.library")
    told = []
    for level in ("debug", "warning", "error"):
        set_level(level)
        library.info("detail")
        library.warning("trouble")
        told.append(len(written(capsys)))
    assert told == [1, 1, 0]
