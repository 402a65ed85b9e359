"""Mistral's two ways to write calls: a list of JSON objects, and names before their arguments."""

from __future__ import annotations

from collections.abc import Collection

from blink_server.text.grammar.constraint import (
    Spec,
    any_of,
    repeat,
    sequence,
    text,
)
from blink_server.text.tools.json_formats import (
    JsonCalls,
    content_before,
    named,
    rest_of_call,
    rest_of_first_call,
)
from blink_server.text.tools.parser import (
    CallDelta,
    CallShape,
    Content,
    Parsed,
    random_id,
    split_partial,
)

_CALLS, _ARGUMENTS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class Mistral:
    """`[TOOL_CALLS][{"name": ..., "arguments": ...}]`: Mistral 7B v0.3, Nemo, Small 2409."""

    special_tokens = ("[TOOL_CALLS]",)

    def recognises(self, chat_template: str) -> bool:
        return "[TOOL_CALLS]" in chat_template and "[ARGS]" not in chat_template

    def opening(self, name: str | None) -> str:
        return '[TOOL_CALLS][{"name": "' + named(name, "arguments")

    def after_opening(self, name: str | None, shape: CallShape) -> Spec:
        again = sequence(text(', {"name": "'), rest_of_call(shape, "arguments"))
        first = rest_of_first_call(name, shape, "arguments")
        several = shape.parallel and name is None
        return sequence(first, repeat(again) if several else text(""), text("]"))

    def content_then(self, calls: Spec) -> Spec:
        return content_before("[TOOL_CALLS]", calls)

    def parser(self, names: Collection[str]) -> JsonCalls:
        return JsonCalls("[TOOL_CALLS]")

    def call_id(self) -> str:
        return random_id(9)  # the length that Mistral's templates insist on


class NamedCalls:
    """Calls `[TOOL_CALLS]name[ARGS]{...}`, one behind the other; `[CALL_ID]` may follow a name."""

    def __init__(self) -> None:
        self._unread = ""
        self._content = Content()
        self._name: str | None = None  # None: in the content
        self._object: _ObjectEnd | None = None  # of the arguments that are being read
        self._count = 0
        self._shown: list[str] = []
        self._deltas: list[CallDelta] = []

    def push(self, text: str) -> Parsed:
        """See `ToolParser.push`."""
        self._unread += text
        while self._unread and self._step():
            pass
        return self._take()

    def finish(self) -> Parsed:
        """See `ToolParser.finish`."""
        rest = self._unread
        if self._name is not None and self._object is None:
            rest = _CALLS + self._name + rest  # a name without arguments is no call
        self._unread, self._name = "", None
        self._shown.append(self._content.push(rest))
        if not self._count:
            self._shown.append(self._content.finish())
        return self._take()

    def _take(self) -> Parsed:
        shown, deltas = "".join(self._shown), self._deltas
        self._shown, self._deltas = [], []
        return shown, deltas

    def _step(self) -> bool:
        """Read some of `_unread`; False where more text is needed first."""
        if self._object is not None:
            return self._step_arguments(self._object)
        if self._name is not None:
            return self._step_name()
        before, found, after = self._unread.partition(_CALLS)
        if found:
            self._shown.append(self._content.push(before))
            self._name, self._unread = "", after
            return True
        shown, self._unread = split_partial(self._unread, _CALLS)
        self._shown.append(self._content.push(shown))
        return False

    def _step_name(self) -> bool:
        head, found, after = self._unread.partition(_ARGUMENTS)
        if not found:
            return False
        self._unread, self._object = after, _ObjectEnd()
        self._content.call_follows()
        name = head.partition(_ID)[0].strip()
        self._deltas.append(CallDelta(self._count, name, ""))
        self._count += 1
        return True

    def _step_arguments(self, arguments: _ObjectEnd) -> bool:
        if not arguments.begun:
            self._unread = self._unread.lstrip()
        length = arguments.read(self._unread)
        if taken := self._unread[:length]:
            self._deltas.append(CallDelta(self._count - 1, None, taken))
        self._unread = self._unread[length:]
        if arguments.ended:
            self._object = self._name = None
        return True


class _ObjectEnd:
    """Finds where a JSON object ends, as its text arrives."""

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        self._quoted = self._escaped = False

    @property
    def begun(self) -> bool:
        return self._depth > 0

    def read(self, text: str) -> int:
        """How many characters of `text` belong to the object."""
        for place, character in enumerate(text):
            if self._quoted:
                self._quoted = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    self.ended = True
                    return place + 1
        return len(text)


class MistralArgs:
    """`[TOOL_CALLS]name[ARGS]{...}`: Magistral, Devstral, Small 3.2 and later."""

    special_tokens = (_CALLS, _ARGUMENTS, _ID)

    def recognises(self, chat_template: str) -> bool:
        return _CALLS in chat_template and _ARGUMENTS in chat_template

    def opening(self, name: str | None) -> str:
        return _CALLS if name is None else f"{_CALLS}{name}{_ARGUMENTS}"

    def after_opening(self, name: str | None, shape: CallShape) -> Spec:
        if name is not None:
            [arguments] = [tool.arguments for tool in shape.tools if tool.name == name]
            return arguments
        call = any_of(
            *(sequence(text(tool.name + _ARGUMENTS), tool.arguments) for tool in shape.tools)
        )
        again = sequence(text(_CALLS), call)
        return sequence(call, repeat(again)) if shape.parallel else call

    def content_then(self, calls: Spec) -> Spec:
        return content_before(_CALLS, calls)

    def parser(self, names: Collection[str]) -> NamedCalls:
        return NamedCalls()

    def call_id(self) -> str:
        return random_id(9)
