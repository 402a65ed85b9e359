"""Tool calls on their way through: records between two control characters, within the text."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from blink_server.text.tools.parser import CallDelta, Parsed, random_id

CHAT_MARK = "<|openai_chat|>"
"""What the prompt of a chat begins with that the other server's template is to be applied to."""

_BEGIN, _END = "\x1e", "\x1f"


def record(fields: Mapping[str, Any]) -> str:
    """One record."""
    return f"{_BEGIN}{json.dumps(fields)}{_END}"


def plain(content: str) -> str:
    """Content without what could be taken for a record."""
    return content.replace(_BEGIN, "").replace(_END, "")


class ProxyToolFormat:
    """Fulfils `ToolFormat`."""

    special_tokens: Collection[str] = ()

    def recognises(self, chat_template: str) -> bool:
        """Whether a template passes chats on."""
        return CHAT_MARK in chat_template

    def opening(self, name: str | None) -> str:
        """Tells the backend of the choice; it comes to the parser as well, which skips it."""
        return record({"forced": name})

    def parser(self, names: Collection[str]) -> ProxyToolParser:
        """One for one answer."""
        return ProxyToolParser()

    def call_id(self) -> str:
        """A fresh id in OpenAI's manner."""
        return f"call_{random_id(24)}"


class ProxyToolParser:
    """Fulfils `ToolParser`."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> Parsed:
        """Content outside the records, and what the complete records tell."""
        content, deltas = "", []
        pieces = (self._held + text).split(_BEGIN)
        self._held = ""
        content += pieces[0]
        for number, piece in enumerate(pieces[1:], 1):
            inside, end, after = piece.partition(_END)
            if not end and number == len(pieces) - 1:
                self._held = _BEGIN + piece
                break
            fields = json.loads(inside)
            if "index" in fields:
                deltas.append(CallDelta(**fields))
            content += after
        return content, deltas

    def finish(self) -> Parsed:
        """What began like a record and was none."""
        held, self._held = self._held, ""
        return held, []
