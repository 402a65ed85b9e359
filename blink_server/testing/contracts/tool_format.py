"""What every way of writing tool calls must do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from blink_server.text.tools.parser import ToolFormat

Call = tuple[str, Mapping[str, Any]]
"""A tool's name and its arguments."""

NAMES = ("get_weather", "add")
CALLS: Sequence[Call] = (
    ("get_weather", {"city": "São Paulo", "days": [1, 2], "exact": True, "note": 'a "b" {c}'}),
    ("add", {"a": -1.5, "b": None}),
)
PLAIN = ("", "Hello", "x < y and [1] {2}", "{not a call}", "a\n\nb  c")


class ToolFormatContract:
    """Override `tool_format`, `templates` and `write`."""

    templates: tuple[str, ...] = ()
    """Chat templates of models that write calls this way."""

    calls: Sequence[Call] = CALLS
    """Calls that a model may write, all for tools of `NAMES`."""

    content = "Let me see. "
    """What a model may say before them; empty where it may say nothing."""

    @pytest.fixture
    def tool_format(self) -> ToolFormat:
        """The one that is tested."""
        raise NotImplementedError("override the fixture `tool_format`")

    def write(self, calls: Sequence[Call]) -> str:
        """The text with which a model makes these calls."""
        raise NotImplementedError("override the method `write`")

    def parse(
        self, tool_format: ToolFormat, pieces: Sequence[str], names: Sequence[str] = NAMES
    ) -> tuple[str, list[Call]]:
        """Content and calls of a text that comes in pieces."""
        content, found = self.parse_raw(tool_format, pieces, names)
        return content, [(name, json.loads(arguments)) for name, arguments in found]

    def parse_raw(
        self, tool_format: ToolFormat, pieces: Sequence[str], names: Sequence[str] = NAMES
    ) -> tuple[str, list[tuple[str, str]]]:
        """The same of a text that may have broken off: arguments as they came."""
        parser = tool_format.parser(names)
        parsed = [*(parser.push(piece) for piece in pieces), parser.finish()]
        found: list[tuple[str, str]] = []
        for _, deltas in parsed:
            for delta in deltas:
                if delta.name is not None:
                    assert delta.index == len(found), "calls are numbered from 0"
                    found.append((delta.name, ""))
                name, arguments = found[delta.index]
                found[delta.index] = name, arguments + delta.arguments
        return "".join(content for content, _ in parsed), found

    def test_calls_are_found_with_their_arguments(self, tool_format: ToolFormat) -> None:
        content, calls = self.parse(tool_format, [self.content + self.write(self.calls)])
        assert calls == list(self.calls)
        assert content.strip() == self.content.strip()

    def test_it_does_not_matter_how_the_text_is_split(self, tool_format: ToolFormat) -> None:
        text = self.content + self.write(self.calls)
        whole = self.parse(tool_format, [text])
        assert self.parse(tool_format, list(text)) == whole
        for place in range(len(text)):
            assert self.parse(tool_format, [text[:place], text[place:]]) == whole

    def test_text_without_calls_is_content_unchanged(self, tool_format: ToolFormat) -> None:
        for text in PLAIN:
            assert self.parse(tool_format, list(text)) == (text, [])

    def test_what_breaks_off_raises_nothing(self, tool_format: ToolFormat) -> None:
        text = self.write(self.calls)
        for place in range(len(text)):
            parser = tool_format.parser(NAMES)
            parser.push(text[:place])
            parser.finish()

    def test_an_answer_that_must_be_a_call_begins_with_the_opening(
        self, tool_format: ToolFormat
    ) -> None:
        for name in (None, NAMES[0]):
            content, calls = self.parse_raw(tool_format, [tool_format.opening(name)])
            assert [each for each, _ in calls] in ([], [name])
            assert tool_format.opening(name).startswith(content)

    def test_templates_of_its_models_are_recognised(self, tool_format: ToolFormat) -> None:
        assert self.templates, "state the `templates`"
        assert all(tool_format.recognises(template) for template in self.templates)
        assert not tool_format.recognises("{{ messages[0].content }}")

    def test_ids_of_calls_differ(self, tool_format: ToolFormat) -> None:
        assert len({tool_format.call_id() for _ in range(64)}) == 64
