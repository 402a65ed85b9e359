"""Calls written in Python's syntax: `[f(a=1, b="x"), g()]`, as Llama 4 and others do."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection
from typing import Any

from blink_server.text.tools.parser import CallDelta, Parsed, random_id

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_OPEN, _CLOSE = "([{", ")]}"
_WORDS = {"true": True, "false": False, "null": None}
MOST_CHARACTERS = 65536
"""Of one call: Python's parser takes memory in proportion."""


class PythonicCalls:
    """A list of calls at the very start of an answer; each is told when its bracket closes.

    Only a list whose first call names one of `names` is one; anything else is content.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._unread = ""
        self._prefix = ""  # what was before the first call
        self._read = 0  # characters of the call in `_unread` that have been looked at
        self._depth = 0
        self._quote = ""
        self._escaped = False
        self._started = False  # the list's own bracket is behind us
        self._content = False  # what comes is no call any more
        self._count = 0

    def push(self, text: str) -> Parsed:
        """See `ToolParser.push`."""
        if self._content:
            return text, []
        self._unread += text
        deltas: list[CallDelta] = []
        if not self._started and not self._start():
            return (self._give_up() if self._content else ""), deltas
        while (end := self._end_of_call()) is not None:
            delta = self._parse(self._unread[:end])
            if delta is None:
                return self._give_up(), deltas
            deltas.append(delta)
            self._unread, self._read = self._unread[end:], 0
        return (self._give_up() if self._content else ""), deltas

    def finish(self) -> Parsed:
        """See `ToolParser.finish`."""
        done = self._count and not self._unread.strip(" \t\r\n,]")
        return ("" if done else self._give_up()), []

    def _start(self) -> bool:
        begin = self._unread.lstrip()
        if begin.startswith("["):
            rest = begin[1:].lstrip()
            name = _NAME.match(rest)
            if name and name.end() < len(rest):
                called = rest[name.end()] == "(" and name.group() in self._names
                self._started, self._content = called, not called
                if called:
                    self._prefix = self._unread[: -len(rest)]
                    self._unread = rest
                return called
            self._content = bool(rest) and not name
        else:
            self._content = bool(begin)
        return False

    def _give_up(self) -> str:
        """The rest is content."""
        self._content = True
        rest = self._unread if self._count else self._prefix + self._unread
        self._unread = self._prefix = ""
        return rest

    def _end_of_call(self) -> int | None:
        """Where the call at the start of `_unread` ends; skips what stands before it."""
        if not self._read:
            self._unread = self._unread.lstrip(" \t\r\n,]")
            if self._unread and not _NAME.match(self._unread):
                self._content = True
                return None
        while self._read < min(len(self._unread), MOST_CHARACTERS):
            character = self._unread[self._read]
            self._read += 1
            if self._closes(character):
                return self._read
        self._content = self._read == MOST_CHARACTERS
        return None

    def _closes(self, character: str) -> bool:
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == self._quote:
                self._quote = ""
        elif character in "'\"":
            self._quote = character
        elif character in _OPEN:
            self._depth += 1
        elif character in _CLOSE:
            self._depth -= 1
            return self._depth <= 0
        return False

    def _parse(self, text: str) -> CallDelta | None:
        try:
            name, arguments = parse_call(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            return None
        self._count += 1
        return CallDelta(self._count - 1, name, arguments)


def parse_call(text: str) -> tuple[str, str]:
    """Name and arguments, as a JSON object, of a call of literals by keyword.

    Raises ValueError, TypeError or SyntaxError for any other expression.
    """
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError("not a call by keyword")
    arguments: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError("not a call by keyword")
        arguments[keyword.arg] = ast.literal_eval(_Words().visit(keyword.value))
    return ast.unparse(call.func), json.dumps(arguments, ensure_ascii=False, allow_nan=False)


class _Words(ast.NodeTransformer):
    """JSON's true, false and null, which models write for Python's."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(_WORDS[node.id]) if node.id in _WORDS else node


class Pythonic:
    """Llama 4, and Llama 3.2 with a template that asks for it."""

    special_tokens = ()

    def recognises(self, chat_template: str) -> bool:
        return "func_name1(" in chat_template

    def opening(self, name: str | None) -> str:
        return "[" if name is None else f"[{name}("

    def parser(self, names: Collection[str]) -> PythonicCalls:
        return PythonicCalls(names)

    def call_id(self) -> str:
        return f"call_{random_id(24)}"
