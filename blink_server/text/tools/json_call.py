"""One call written as a JSON object, read as it arrives: {"name": "f", "arguments": {...}}."""

from __future__ import annotations

import json
from collections.abc import Collection
from enum import Enum, auto

_WHITE = " \t\r\n"


class _At(Enum):
    """What the scanner expects, or is in the middle of."""

    START = auto()
    KEY = auto()
    KEY_TEXT = auto()
    COLON = auto()
    VALUE = auto()
    TEXT = auto()
    NESTED = auto()
    SCALAR = auto()
    NEXT = auto()
    DONE = auto()
    FAILED = auto()


class JsonCall:
    """Takes characters of the object; `name` and arguments are known as soon as they are read.

    Arguments pass as the model wrote them. Arguments in a JSON string are taken out of it;
    missing ones are {}.
    """

    def __init__(self, argument_keys: Collection[str] = ("arguments", "parameters")) -> None:
        self._argument_keys = argument_keys
        self._at = _At.START
        self._key = ""
        self._part: list[str] = []  # of the key or value being read
        self._depth = 0
        self._quoted = False
        self._escaped = False
        self._new: list[str] = []
        self._has_arguments = False
        self.name: str | None = None

    @property
    def done(self) -> bool:
        """The object is complete, and a call."""
        return self._at is _At.DONE

    @property
    def failed(self) -> bool:
        """The text is no such object."""
        return self._at is _At.FAILED

    def take_arguments(self) -> str:
        """The text of the arguments that was read since the last time."""
        taken, self._new = "".join(self._new), []
        return taken

    def push(self, text: str) -> int:
        """Read on until the name is known, or the object ends or fails.

        Returns how many characters were read.
        """
        before = self.name
        for place, character in enumerate(text):
            self._step(character)
            if self._at is _At.DONE or self.name != before:
                return place + 1
            if self._at is _At.FAILED:
                return place
        return len(text)

    def _step(self, character: str) -> None:
        match self._at:
            case _At.KEY_TEXT | _At.TEXT:
                self._step_text(character)
                return
            case _At.NESTED:
                self._step_nested(character)
                return
            case _At.SCALAR:
                if character not in ",}" and character not in _WHITE:
                    self._part.append(character)
                    return
                self._end_value()
        if character in _WHITE:
            return
        match self._at, character:
            case _At.START, "{":
                self._at = _At.KEY
            case _At.KEY, '"':
                self._begin(_At.KEY_TEXT, character)
            case _At.COLON, ":":
                self._at = _At.VALUE
            case _At.VALUE, '"':
                self._begin(_At.TEXT, character)
            case _At.VALUE, "{" | "[":
                self._begin(_At.NESTED, character)
            case _At.VALUE, _ if character not in ",}]:":
                self._begin(_At.SCALAR, character)
            case _At.NEXT, ",":
                self._at = _At.KEY
            case _At.NEXT, "}":
                self._end()
            case _:
                self._at = _At.FAILED

    def _begin(self, at: _At, character: str) -> None:
        self._at = at
        self._part = [character]
        self._depth, self._quoted, self._escaped = 1, False, False
        if at is _At.NESTED and self._is_arguments:
            self._has_arguments = True
            self._new.append(character)

    @property
    def _is_arguments(self) -> bool:
        return self._key in self._argument_keys and not self._has_arguments

    def _step_text(self, character: str) -> None:
        self._part.append(character)
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            try:
                text = str(json.loads("".join(self._part), strict=False))
            except ValueError:
                self._at = _At.FAILED
                return
            if self._at is _At.KEY_TEXT:
                self._key, self._at = text, _At.COLON
            else:
                self._end_value(text)

    def _step_nested(self, character: str) -> None:
        if self._key in self._argument_keys:
            self._new.append(character)
        if self._quoted:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._quoted = False
        elif character == '"':
            self._quoted = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            if not self._depth:
                self._at = _At.NEXT

    def _end_value(self, text: str | None = None) -> None:
        self._at = _At.NEXT
        if self._key == "name":
            self.name = text
            self._at = _At.NEXT if text else _At.FAILED
        elif self._is_arguments and text is not None:
            self._has_arguments = True
            self._new.append(text)

    def _end(self) -> None:
        self._at = _At.DONE if self.name else _At.FAILED
        if not self._has_arguments:
            self._new.append("{}")
