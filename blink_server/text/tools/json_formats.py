"""Families that write calls as JSON objects: Hermes and Qwen, Llama 3."""

from __future__ import annotations

import json
from collections.abc import Collection
from enum import Enum, auto

from blink_server.text.grammar.constraint import (
    OPTIONAL_SPACE,
    Spec,
    any_of,
    repeat,
    sequence,
    text,
)
from blink_server.text.tools.json_call import JsonCall
from blink_server.text.tools.parser import (
    CallDelta,
    CallShape,
    Content,
    Parsed,
    random_id,
    split_partial,
)

_BETWEEN = " \t\r\n,;[]}"
"""What may stand between calls; models close a bracket too much now and then."""


class _At(Enum):
    START = auto()  # nothing but white space yet, where only the start may be a call
    CONTENT = auto()
    CALLS = auto()  # between the calls behind a marker
    CALL = auto()


class JsonCalls:
    """Calls behind a marker, or at the very start of an answer where `bare`.

    Without a marker only an object that names one of `names` is a call.
    """

    def __init__(
        self, marker: str, close: str = "", *, bare: bool = False, names: Collection[str] = ()
    ) -> None:
        self._marker, self._close = marker, close
        self._bare_names = names if bare else None
        self._at = _At.START if bare else _At.CONTENT
        self._content = Content()
        self._unread = ""
        self._raw = ""  # since the last sure thing: content again if it is no call
        self._call = JsonCall()
        self._begun = False  # the call's name has been told
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
        rest = self._unread if self._begun else self._raw + self._unread
        if self._at is _At.CALLS and self._count and self._close.startswith(rest.strip(_BETWEEN)):
            rest = ""
        self._unread = self._raw = ""
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
        match self._at:
            case _At.START:
                return self._step_start()
            case _At.CONTENT:
                return self._step_content()
            case _At.CALLS:
                return self._step_calls()
            case _At.CALL:
                return self._step_call()

    def _step_start(self) -> bool:
        begin = self._unread.lstrip()
        if begin.startswith("{"):
            self._raw, self._unread = self._unread[: -len(begin)], begin
            self._at = _At.CALLS
            return True
        if begin and not self._marker.startswith(begin):
            self._at = _At.CONTENT
            return True
        return False

    def _step_content(self) -> bool:
        before, found, after = self._unread.partition(self._marker)
        if found:
            self._shown.append(self._content.push(before))
            self._raw, self._unread, self._at = found, after, _At.CALLS
            self._begun = False
            return True
        shown, self._unread = split_partial(self._unread, self._marker)
        self._shown.append(self._content.push(shown))
        return False

    def _step_calls(self) -> bool:
        rest = self._unread.lstrip(_BETWEEN)
        self._raw += self._unread[: len(self._unread) - len(rest)]
        self._unread = rest
        if not rest:
            return False
        if rest.startswith("{"):
            self._call, self._begun, self._at = JsonCall(), False, _At.CALL
        elif self._close and rest.startswith(self._close) and self._count:
            self._raw, self._unread = "", rest[len(self._close) :]
            self._at = _At.CONTENT
        elif self._close and self._close.startswith(rest) and self._count:
            return False
        else:
            self._no_call()
        return True

    def _step_call(self) -> bool:
        read = self._call.push(self._unread)
        if not self._begun:
            self._raw += self._unread[:read]
        self._unread = self._unread[read:]
        if self._call.failed and not self._begun:
            self._no_call()
            return True
        self._tell()
        if self._at is _At.CALL and (self._call.done or self._call.failed):
            self._at = _At.CALLS
        return True

    def _tell(self) -> None:
        """What is newly known of the call; its name comes before its arguments."""
        call = self._call
        if call.name is None:
            return
        if not self._begun:
            if self._bare_names is not None and call.name not in self._bare_names:
                self._no_call()
                return
            self._begun, self._raw = True, ""
            self._content.call_follows()
            self._deltas.append(CallDelta(self._count, call.name, call.take_arguments()))
            self._count += 1
        elif arguments := call.take_arguments():
            self._deltas.append(CallDelta(self._count - 1, None, arguments))

    def _no_call(self) -> None:
        """What was read since the last call is content after all."""
        raw = self._raw if self._raw.strip(_BETWEEN) or not self._count else ""
        self._shown.append(self._content.push(raw))
        self._raw, self._begun, self._at = "", False, _At.CONTENT


def rest_of_call(shape: CallShape, key: str) -> Spec:
    """What follows `{"name": "`: a name, the arguments, the object's end."""
    calls = [
        sequence(text(named(tool.name, key)), OPTIONAL_SPACE, tool.arguments, text("}"))
        for tool in shape.tools
    ]
    return any_of(*calls)


def rest_of_first_call(name: str | None, shape: CallShape, key: str) -> Spec:
    """The rest of the first call, whose name is in the opening where it was demanded."""
    if name is None:
        return rest_of_call(shape, key)
    [arguments] = [tool.arguments for tool in shape.tools if tool.name == name]
    return sequence(OPTIONAL_SPACE, arguments, text("}"))


def content_before(marker: str, calls: Spec) -> Spec:
    """Content without the marker, and perhaps calls behind it."""
    return sequence({"type": "not_containing", "text": marker}, repeat(calls, most=1))


class Hermes:
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`: Hermes 2 and 3, Qwen 2.5 and 3."""

    special_tokens = ("<tool_call>", "</tool_call>")

    def recognises(self, chat_template: str) -> bool:
        # Qwen 3 Coder writes XML inside the same marker.
        return "<tool_call>" in chat_template and "<function=" not in chat_template

    def opening(self, name: str | None) -> str:
        return '<tool_call>\n{"name": "' + named(name, "arguments")

    def after_opening(self, name: str | None, shape: CallShape) -> Spec:
        close = text("\n</tool_call>")
        again = sequence(text("\n" + self.opening(None)), rest_of_call(shape, "arguments"), close)
        first = sequence(rest_of_first_call(name, shape, "arguments"), close)
        return sequence(first, repeat(again)) if shape.parallel and name is None else first

    def content_then(self, calls: Spec) -> Spec:
        return content_before("<tool_call>", calls)

    def parser(self, names: Collection[str]) -> JsonCalls:
        return JsonCalls("<tool_call>", "</tool_call>")

    def call_id(self) -> str:
        return f"call_{random_id(24)}"


class Llama3Json:
    """`{"name": ..., "parameters": ...}` at the start of an answer: Llama 3.1 to 3.3."""

    special_tokens = ("<|python_tag|>",)

    def recognises(self, chat_template: str) -> bool:
        return "<|python_tag|>" in chat_template

    def opening(self, name: str | None) -> str:
        return '{"name": "' + named(name, "parameters")

    def after_opening(self, name: str | None, shape: CallShape) -> Spec:
        again = sequence(text("; " + self.opening(None)), rest_of_call(shape, "parameters"))
        first = rest_of_first_call(name, shape, "parameters")
        return sequence(first, repeat(again)) if shape.parallel and name is None else first

    def content_then(self, calls: Spec) -> Spec:
        # A brace at the start is a call's.
        content: Spec = {"type": "regex", "source": r"(?s:[^{\s<].*)?"}
        return any_of(content, calls)

    def parser(self, names: Collection[str]) -> JsonCalls:
        return JsonCalls("<|python_tag|>", bare=True, names=names)

    def call_id(self) -> str:
        return f"call_{random_id(24)}"


def named(name: str | None, key: str) -> str:
    """What follows `{"name": "` up to the arguments; nothing where no name is demanded."""
    return "" if name is None else f'{json.dumps(name)[1:-1]}", "{key}":'
