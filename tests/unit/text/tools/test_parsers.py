"""Every parser: the same calls and content, however the text arrives."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink_server.builtin import blink_tool_parsers
from blink_server.text.tools.parser import ToolFormat

NAMES = ("get_weather", "f")
FORMATS: dict[str, ToolFormat] = {name: make() for name, make in blink_tool_parsers().items()}

Result = tuple[str, list[tuple[str, str]]]


def parse(family: str, pieces: list[str]) -> Result:
    """Content and (name, arguments) of each call, of a text that arrives in `pieces`."""
    parser = FORMATS[family].parser(NAMES)
    content = ""
    calls: list[list[str]] = []
    for shown, deltas in [*map(parser.push, pieces), parser.finish()]:
        content += shown
        for delta in deltas:
            if delta.name is not None:
                assert delta.index == len(calls)
                calls.append([delta.name, ""])
            assert delta.index == len(calls) - 1
            calls[delta.index][1] += delta.arguments
    return content, [(name, arguments) for name, arguments in calls]


PARIS = '{"city": "Par\\"is {[", "days": [1, {"a": null}]}'
PYTHON = '{"city": "Par)is, [", "days": [1, 2], "ok": true, "no": null}'
CASES: list[tuple[str, str, Result]] = [
    (
        "hermes",
        f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>',
        ("", [("get_weather", PARIS)]),
    ),
    (
        "hermes",
        'Let me see.\n\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
        '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>\n',
        ("Let me see.", [("f", "{}"), ("f", '{"x": 1}')]),
    ),
    (
        "hermes",
        '<tool_call>[{"name": "f", "arguments": {"x": 1}}, {"name": "f"}]</tool_call> Done.',
        (" Done.", [("f", '{"x": 1}'), ("f", "{}")]),
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1', ("", [("f", '{"x": 1')])),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>',
        ("", [("f", '{"x": 1}')]),
    ),
    ("hermes", "a < b <tool_ca", ("a < b <tool_ca", [])),
    ("hermes", "<tool_call>nonsense", ("<tool_call>nonsense", [])),
    ("hermes", "<tool_call>{'name': 'f'}", ("<tool_call>{'name': 'f'}", [])),
    (
        "hermes",
        '<tool_call>{"nom": "f"}</tool_call>',
        ('<tool_call>{"nom": "f"}</tool_call>', []),
    ),
    ("hermes", "plain text \n", ("plain text \n", [])),
    ("hermes", "", ("", [])),
    (
        "llama3_json",
        f'{{"name": "get_weather", "parameters": {PARIS}}}',
        ("", [("get_weather", PARIS)]),
    ),
    (
        "llama3_json",
        '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "f", "parameters": {"x": 1}}',
        ("", [("f", "{}"), ("f", '{"x": 1}')]),
    ),
    ("llama3_json", '{"name": "stranger"} is JSON', ('{"name": "stranger"} is JSON', [])),
    ("llama3_json", '{"key": [1, 2]} is JSON', ('{"key": [1, 2]} is JSON', [])),
    ("llama3_json", '  {"key', ('  {"key', [])),
    ("llama3_json", 'I say {"name": "f"}', ('I say {"name": "f"}', [])),
    ("llama3_json", '{"name": "f", "parameters": {"x": 1}}}', ("", [("f", '{"x": 1}')])),
    (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "f", "arguments": {PARIS}}}, '
        '{"name": "f", "arguments": {}, "id": "abcdefghi"}]',
        ("", [("f", PARIS), ("f", "{}")]),
    ),
    ("mistral", "text [TOOL", ("text [TOOL", [])),
    (
        "mistral_args",
        f"Let me see. [TOOL_CALLS]f[ARGS]{PARIS}[TOOL_CALLS]get_weather[CALL_ID]abc[ARGS] {{}} ",
        ("Let me see.", [("f", PARIS), ("get_weather", "{}")]),
    ),
    ("mistral_args", '[TOOL_CALLS]f[ARGS]{"x": 1', ("", [("f", '{"x": 1')])),
    ("mistral_args", "see [TOOL_CALLS]f[AR", ("see [TOOL_CALLS]f[AR", [])),
    ("mistral_args", "[TOOL_CALL] [ARGS]", ("[TOOL_CALL] [ARGS]", [])),
    (
        "pythonic",
        '[get_weather(city="Par)is, [", days=[1, 2], ok=true, no=None), f()]',
        ("", [("get_weather", PYTHON), ("f", "{}")]),
    ),
    ("pythonic", "[1, 2, 3]", ("[1, 2, 3]", [])),
    ("pythonic", "[stranger(a=1)]", ("[stranger(a=1)]", [])),
    ("pythonic", "[f(open('x'))]", ("[f(open('x'))]", [])),
    ("pythonic", "[f(a=__import__('os'))]", ("[f(a=__import__('os'))]", [])),
    ("pythonic", "[f(a=1), f(a=", ("f(a=", [("f", '{"a": 1}')])),
    ("pythonic", "[f(a=1)] and text", ("and text", [("f", '{"a": 1}')])),
    ("pythonic", "Just text.", ("Just text.", [])),
]


@pytest.mark.parametrize(("family", "text", "expected"), CASES)
def test_calls_and_content(family: str, text: str, expected: Result) -> None:
    assert parse(family, [text]) == expected
    assert parse(family, list(text)) == expected


FRAGMENTS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        '{"name": "f"',
        "}",
        "]",
    ),
    *(', "arguments": {"a": [1, "}"]}', ', "parameters": "x"', '"', "\\", "{", "[", " \n", "é😀"),
    *("[f(", "f(", "a=1", ", ", ")", "word", "'", "<", "</tool"),
]


@pytest.mark.parametrize("family", FORMATS)
@given(data=st.data())
def test_the_split_of_the_text_changes_nothing(family: str, data: Any) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(FRAGMENTS), max_size=12)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    edges = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert parse(family, pieces) == parse(family, [text]) == parse(family, list(text))


@pytest.mark.parametrize("family", FORMATS)
@given(text=st.text(st.characters(exclude_characters='<>[]{}|"')))
def test_text_without_marks_is_content_unchanged(family: str, text: str) -> None:
    assert parse(family, [text]) == (text, [])


@pytest.mark.parametrize("family", FORMATS)
def test_an_opening_leads_to_a_call(family: str) -> None:
    ends = {"pythonic": "x=1)]", "mistral_args": ' {"x": 1}'}
    text = FORMATS[family].opening("f") + ends.get(family, ' {"x": 1}}')
    content, [(name, arguments)] = parse(family, [text])
    assert (content, name, json.loads(arguments)) == ("", "f", {"x": 1})
    anything = FORMATS[family].opening(None)
    assert FORMATS[family].opening("f").startswith(anything)


def test_templates_tell_their_family() -> None:
    templates = {
        "hermes": "return a json object within <tool_call></tool_call> XML tags",
        "llama3_json": "{{- '<|python_tag|>' }}",
        "mistral": "{{- '[TOOL_CALLS] [' }}",
        "mistral_args": "{{- '[TOOL_CALLS]' + name + '[ARGS]' }}",
        "pythonic": "[func_name1(params_name1=params_value1...)] <|python_tag|>",
    }
    for family, template in templates.items():
        found = next(name for name, each in FORMATS.items() if each.recognises(template))
        assert found == family
    assert not any(each.recognises("{{ messages }}") for each in FORMATS.values())


def test_ids_are_what_the_families_take() -> None:
    assert FORMATS["mistral"].call_id().isalnum()
    assert len(FORMATS["mistral"].call_id()) == 9
    assert FORMATS["hermes"].call_id() != FORMATS["hermes"].call_id()
