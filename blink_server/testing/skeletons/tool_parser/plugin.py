"""The tool parser `my_plugin`: `<call>name {"argument": 1}</call>`. Replace it by yours."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from blink_server.hookspecs import ToolFormatFactory, hookimpl
from blink_server.text.tools.parser import CallDelta, Parsed, random_id, split_partial

BEGIN, END = "<call>", "</call>"


class MyToolFormat:
    """Fulfils `blink_server.text.tools.parser.ToolFormat`."""

    special_tokens: Collection[str] = ()

    def recognises(self, chat_template: str) -> bool:
        return BEGIN in chat_template

    def opening(self, name: str | None) -> str:
        return BEGIN if name is None else f"{BEGIN}{name} "

    def parser(self, names: Collection[str]) -> MyToolParser:
        return MyToolParser(names)

    def call_id(self) -> str:
        return f"call_{random_id(24)}"


class MyToolParser:
    """Fulfils `blink_server.text.tools.parser.ToolParser`; tells a call when it is complete."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._count = 0

    def push(self, text: str) -> Parsed:
        self._held += text
        content: list[str] = []
        deltas: list[CallDelta] = []
        while BEGIN in self._held:
            before, _, rest = self._held.partition(BEGIN)
            inside, end, after = rest.partition(END)
            if not end:
                self._held = BEGIN + rest
                return "".join([*content, before]), deltas
            delta = self._call(inside)
            content.append(before if delta else f"{before}{BEGIN}{inside}{END}")
            deltas += [delta] if delta else []
            self._held = after
        shown, self._held = split_partial(self._held, BEGIN)
        return "".join([*content, shown]), deltas

    def finish(self) -> Parsed:
        held, self._held = self._held, ""
        return held, []

    def _call(self, text: str) -> CallDelta | None:
        name, _, arguments = text.strip().partition(" ")
        try:
            known = name in self._names and isinstance(json.loads(arguments), dict)
        except ValueError:
            known = False
        if not known:
            return None
        self._count += 1
        return CallDelta(self._count - 1, name, arguments)


@hookimpl
def blink_tool_parsers() -> Mapping[str, ToolFormatFactory]:
    return {"my_plugin": MyToolFormat}
