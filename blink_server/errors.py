"""The one family of errors that a caller may see, and what each means.

Everything that goes wrong because of what somebody asked, wrote or configured is a `BlinkError`.
HTTP status codes are assigned in one place only, `blink_server.http.errors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


class BlinkError(Exception):
    """Base of all errors that name their cause to a user."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in one file, said so that it can be mended.

    `field` is a JSON-path-like name ("limits.max_rows"), or "" where the whole file is meant;
    `value` is what was found; `expected` says what would be right. `of_machine`: the file is
    right, it is this machine that lacks something, and another may serve it.
    """

    file: Path
    field: str
    value: Any
    expected: str
    of_machine: bool = False

    def __str__(self) -> str:
        where = f"{self.file}: {self.field}" if self.field else str(self.file)
        found = "" if self.value is None else f" is {self.value!r};"
        return f"{where}:{found} {self.expected}"


class InvalidModel(BlinkError):
    """A version directory (or a file of a model) cannot be served; carries every problem found."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class InvalidRequest(BlinkError):
    """A request's field has a value that cannot be served (HTTP 400)."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class UnknownModel(BlinkError):
    """No model, or no version of it, of that name is in service (HTTP 404)."""

    def __init__(self, name: str, instead: str) -> None:
        """`instead`: what there is to ask for."""
        super().__init__(f"the model {name[:200]!r} does not exist or is not in service; {instead}")
        self.name = name


class Overloaded(BlinkError):
    """The ring, an arena or a queue is full, or the model is draining (HTTP 503, Retry-After)."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(BlinkError):
    """A version is known but cannot serve now; the message is its reason (HTTP 503)."""


class MemoryRefused(Unavailable):
    """There is no memory to load a version now; others may have it."""


class EngineFailure(BlinkError):
    """A request in flight cannot be finished: its engine failed (HTTP 500)."""


class RunnerLost(EngineFailure):
    """A request in flight cannot be finished: its runner is gone, and is replaced (HTTP 503)."""
