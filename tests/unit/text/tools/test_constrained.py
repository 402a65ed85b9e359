"""What constrained formats demand of a model is what their parsers read as calls."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import numpy as np
import pytest

from blink_server.builtin import blink_tool_parsers
from blink_server.text.grammar.automaton import Automaton
from blink_server.text.grammar.constraint import any_of, sequence, text
from blink_server.text.grammar.specs import compile_spec
from blink_server.text.tools.parser import CallShape, ConstrainedFormat, ToolShape

FORMATS = {
    name: made
    for name, make in blink_tool_parsers().items()
    if isinstance(made := make(), ConstrainedFormat)
}
X = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}
TOOLS = (
    ToolShape("f", {"type": "json_schema", "schema": X}),
    ToolShape("get_weather", {"type": "json_schema", "schema": {"const": {}}}),
)
ARGUMENTS = {"f": ({"x": True}, {"x": False}), "get_weather": ({},)}


def walk(automaton: Automaton, chance: random.Random, *, longest: int = 600) -> str:
    """A text at random; of more than `longest` bytes the first end is taken."""
    state, found = 0, bytearray()
    while True:
        moves = np.flatnonzero(automaton.next[state, automaton.class_of] >= 0).tolist()
        ends = automaton.accepting[state]
        if ends and (not moves or len(found) > longest or chance.random() < 0.2):
            return found.decode()
        found.append(chance.choice(moves))
        state = int(automaton.next[state, automaton.class_of[found[-1]]])


def read(tool_format: ConstrainedFormat, answer: str) -> tuple[str, list[tuple[str, Any]]]:
    parser = tool_format.parser(("f", "get_weather"))
    content, calls = "", list[list[str]]()
    for shown, deltas in (parser.push(answer), parser.finish()):
        content += shown
        for delta in deltas:
            if delta.name is not None:
                calls.append([delta.name, ""])
            calls[delta.index][1] += delta.arguments
    return content, [(name, json.loads(arguments)) for name, arguments in calls]


def test_these_formats_are_constrained() -> None:
    assert set(FORMATS) == {"hermes", "llama3_json", "mistral", "mistral_args"}


@pytest.mark.parametrize("family", FORMATS)
@pytest.mark.parametrize(("name", "parallel"), [*itertools.product([None, "f"], [True, False])])
def test_calls_that_must_be_made_are_calls(family: str, name: str | None, parallel: bool) -> None:
    tool_format = FORMATS[family]
    automaton = compile_spec(tool_format.after_opening(name, CallShape(TOOLS, parallel)))
    chance, counts, names = random.Random(1), set(), set()
    for _ in range(40):
        answer = tool_format.opening(name) + walk(automaton, chance)
        content, calls = read(tool_format, answer)
        assert content == ""
        counts.add(len(calls))
        for called, arguments in calls:
            names.add(called)
            assert arguments in ARGUMENTS[called]
    assert names == ({"f"} if name else {"f", "get_weather"})
    assert (max(counts) > 1) is (parallel and name is None)


@pytest.mark.parametrize("family", FORMATS)
def test_content_may_come_instead_or_before(family: str) -> None:
    tool_format = FORMATS[family]
    after = tool_format.after_opening(None, CallShape(TOOLS, parallel=False))
    calls = sequence(text(tool_format.opening(None)), after)
    automaton = compile_spec(tool_format.content_then(calls))
    assert automaton.accepts(b"Just text, with [brackets] and {braces}.")
    chance = random.Random(2)
    call = tool_format.opening(None) + walk(compile_spec(after), chance)
    assert automaton.accepts(call.encode())
    assert not automaton.accepts((call[:-1] + "?").encode())
    both = compile_spec(any_of({"type": "json_object"}, calls))
    assert both.accepts(call.encode())
    assert both.accepts(b'{"a": 1}')
