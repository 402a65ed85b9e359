"""The contract of tool parsers (hook `blink_tool_parsers`), and what the built-in ones share."""

from __future__ import annotations

import secrets
import string
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from blink_server.text.grammar.constraint import Spec

_ID_CHARACTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class CallDelta:
    """What became known of the call `index` (from 0) of an answer.

    The first delta of a call, and only it, has its `name`; the `arguments` of all join to one JSON
    object.
    """

    index: int
    name: str | None
    arguments: str


Parsed = tuple[str, list[CallDelta]]
"""Content to show, and what became known of calls."""


class ToolParser(Protocol):
    """Splits the text of one answer, as it grows, into content and calls.

    What it returns must not depend on how the text was split over pushes, once joined: content
    and, for each call, name and arguments. Text that is no call after all is content, unchanged;
    white space beside a call may go.
    """

    def push(self, text: str) -> Parsed:
        """Take more of the text."""
        ...

    def finish(self) -> Parsed:
        """The text has ended: what was held back."""
        ...


class ToolFormat(Protocol):
    """How a family of models writes calls."""

    @property
    def special_tokens(self) -> Collection[str]:
        """Names of special tokens that `parser` must see; others are left out of the text."""
        ...

    def recognises(self, chat_template: str) -> bool:
        """Whether a model with this template source writes calls this way."""
        ...

    def opening(self, name: str | None) -> str:
        """What an answer that must be a call begins with: of the tool `name`, or of any.

        It is put behind the prompt, so that the model can only go on with a call; the parser is
        given it first. It ends where a token naturally ends.
        """
        ...

    def parser(self, names: Collection[str]) -> ToolParser:
        """A parser for one answer; `names` are the tools that may be called."""
        ...

    def call_id(self) -> str:
        """A fresh id for a call."""
        ...


class ToolShape(NamedTuple):
    """A tool's name, and the spec of its arguments as JSON."""

    name: str
    arguments: Spec


class CallShape(NamedTuple):
    """What an answer may call, and whether several times."""

    tools: tuple[ToolShape, ...]
    parallel: bool


@runtime_checkable
class ConstrainedFormat(ToolFormat, Protocol):
    """A format whose calls can be demanded of a model, by a spec of their text."""

    def after_opening(self, name: str | None, shape: CallShape) -> Spec:
        """What may follow `opening(name)`: the rest of that call, and further calls."""
        ...

    def content_then(self, calls: Spec) -> Spec:
        """Any content, and then perhaps `calls`, which begin with an opening."""
        ...


def random_id(length: int) -> str:
    """Letters and digits, `length` of them."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(length))


def split_partial(text: str, marker: str) -> tuple[str, str]:
    """`text` in two, the second being the longest end of it that could begin `marker`."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if marker.startswith(text[-length:]):
            return text[:-length], text[-length:]
    return text, ""


class Content:
    """Text beside calls; white space is held until it is known that no call follows it."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        """What may be shown now."""
        text = self._held + text
        shown = text.rstrip()
        self._held = text[len(shown) :]
        return shown

    def call_follows(self) -> None:
        """The white space was only between content and call."""
        self._held = ""

    def finish(self) -> str:
        """The white space that no call followed."""
        held, self._held = self._held, ""
        return held
