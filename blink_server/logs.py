"""One form for every log line of the server's processes: for people, or as JSON.

What is logged while a request is served carries its id. Runners write to the provisioner, which
passes their lines on in the server's form.
"""

from __future__ import annotations

import json
import logging
import os
import re
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal, get_args

Level = Literal["debug", "info", "warning", "error"]
Form = Literal["human", "json"]

LEVELS: tuple[Level, ...] = get_args(Level)
FORMS: tuple[Form, ...] = get_args(Form)

LEVEL_VARIABLE = "BLINK_LOG_LEVEL"
FORM_VARIABLE = "BLINK_LOG_FORMAT"

NO_REQUEST = "-"

current_request_id: ContextVar[str] = ContextVar("current_request_id", default=NO_REQUEST)
"""The id of the request that is served, for log lines."""

RUNNER_FORMAT = "%(levelname)s %(name)s: %(message)s"
"""How processes write whose lines the provisioner passes on."""

_HUMAN = "%(asctime)s %(levelname)-7s %(message)s%(of_request)s"
_RUNNER_LINE = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) \S+: ")
_runners = logging.getLogger("blink_server.runners")


def configure_logging() -> None:
    """Log to standard error as the environment says; of libraries nothing below warnings.

    What Python warns of (`warnings.warn`) is logged too, by the logger `py.warnings`.
    """
    handler = logging.StreamHandler()
    handler.addFilter(_add_request_id)
    form = os.environ.get(FORM_VARIABLE, "human")
    handler.setFormatter(_Json() if form == "json" else logging.Formatter(_HUMAN))
    logging.basicConfig(handlers=[handler], force=True)
    logging.captureWarnings(True)
    set_level(os.environ.get(LEVEL_VARIABLE, "info"))


def set_level(level: str) -> None:
    """Log from `level`, one of `LEVELS`, up; processes started from now on do so too."""
    os.environ[LEVEL_VARIABLE] = level
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger("blink_server").setLevel(number)
    logging.getLogger().setLevel(max(number, logging.WARNING))


def pass_on(runner: str, line: str) -> None:
    """Log a line that a runner has written. What has no level of its own was not foreseen."""
    found = _RUNNER_LINE.match(line)
    level = logging.WARNING if found is None else logging.getLevelNamesMapping()[found[1]]
    _runners.log(level, "[%s] %s", runner, line, extra={"runner": runner})


def _add_request_id(record: logging.LogRecord) -> bool:
    request_id = current_request_id.get()
    record.request_id = request_id
    told = request_id == NO_REQUEST or request_id in record.getMessage()
    record.of_request = "" if told else f" [request {request_id}]"
    return True


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        request_id = getattr(record, "request_id", NO_REQUEST)
        if request_id != NO_REQUEST:
            entry["request_id"] = request_id
        if (runner := getattr(record, "runner", None)) is not None:
            entry["runner"] = runner
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)
