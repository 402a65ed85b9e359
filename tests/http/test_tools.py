"""Tools: through the template, forced by tool_choice, parsed from the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from blink_server.builtin import blink_tool_parsers
from blink_server.http.text_parts import TextParts
from blink_server.testing.fake_backend import answer
from blink_server.testing.tiny_tokenizer import CHAT_TEMPLATE
from blink_server.text.chat_template import ChatTemplate
from blink_server.text.tools.json_formats import JsonCalls
from blink_server.text.tools.mistral import Mistral

TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool.function.name }};{% endfor %}{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}={{ c.function.arguments.x }}"
    "{% endfor %}|{% endfor %}"
)
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "g", "description": "does g"}},
]
CALL = 'Hm.\n<tool_call>{"name": "f", "arguments": {"x": "é"}}</tool_call>'
TWO = CALL + '<tool_call>{"name": "g", "arguments": {}}</tool_call>'


def serve(worker: Any, text: str, *, family: str = "hermes", template: str = TEMPLATE) -> Any:
    session = worker.session(answer(worker.tokenizer, text, eos=2))
    entry = worker.entry(session, template=None, chat_template="chat_template.jinja")
    parts = TextParts(
        worker.tokenizer, ChatTemplate(template), blink_tool_parsers()[family]() if family else None
    )
    worker.directory.publish([replace(entry, text=parts)])
    return session


def prompt(worker: Any, session: Any) -> str:
    return str(worker.tokenizer.decode(session.requests[-1].prompt_ids))


def joined(chunks: list[Any]) -> dict[str, Any]:
    """The message that a stream's deltas come to, with its finish reason."""
    content, calls, reason = "", [], None
    for chunk in chunks:
        [choice] = chunk["choices"]
        content += choice["delta"].get("content", "")
        reason = choice["finish_reason"] or reason
        for piece in choice["delta"].get("tool_calls", []):
            if "id" in piece:
                assert piece["index"] == len(calls)
                calls.append(
                    {"name": piece["function"]["name"], "arguments": "", "id": piece["id"]}
                )
            calls[piece["index"]]["arguments"] += piece["function"]["arguments"]
    return {"content": content, "calls": calls, "finish_reason": reason}


def whole(body: Mapping[str, Any]) -> dict[str, Any]:
    choice = body["choices"][0]
    calls = [
        {**call["function"], "id": call["id"]} for call in choice["message"].get("tool_calls", [])
    ]
    content = choice["message"]["content"] or ""
    return {"content": content, "calls": calls, "finish_reason": choice["finish_reason"]}


async def test_tools_reach_the_template_and_calls_the_client(worker: Any, frames: Any) -> None:
    session = serve(worker, TWO)
    plain = await worker.chat("Hi", tools=TOOLS)
    assert prompt(worker, session) == "f;g;user:Hi|"
    message = plain.json["choices"][0]["message"]
    assert [call["type"] for call in message["tool_calls"]] == ["function"] * 2
    found = whole(plain.json)
    assert found["content"] == "Hm."
    assert found["finish_reason"] == "tool_calls"
    assert [(c["name"], c["arguments"]) for c in found["calls"]] == [
        ("f", '{"x": "é"}'),
        ("g", "{}"),
    ]
    assert len({call["id"] for call in found["calls"]}) == 2
    streamed = joined(frames((await worker.chat("Hi", tools=TOOLS, stream=True)).content))
    for call, other in zip(found["calls"], streamed["calls"], strict=True):
        other["id"] = call["id"]  # ids are random
    assert streamed == found


async def test_arguments_are_streamed_as_they_come(worker: Any, frames: Any) -> None:
    serve(worker, CALL)
    chunks = frames((await worker.chat("Hi", tools=TOOLS, stream=True)).content)
    pieces = [
        piece
        for chunk in chunks
        for choice in chunk["choices"]
        for piece in choice["delta"].get("tool_calls", [])
    ]
    assert pieces[0]["function"] == {"name": "f", "arguments": ""}
    assert len(pieces) > 3


async def test_an_answer_without_calls_is_content(worker: Any) -> None:
    serve(worker, "Nothing to call.")
    found = whole((await worker.chat("Hi", tools=TOOLS)).json)
    assert found == {"content": "Nothing to call.", "calls": [], "finish_reason": "stop"}


async def test_content_is_null_beside_calls(worker: Any) -> None:
    serve(worker, CALL.removeprefix("Hm.\n"))
    message = (await worker.chat("Hi", tools=TOOLS)).json["choices"][0]["message"]
    assert message["content"] is None


async def test_choice_none_keeps_tools_from_the_model(worker: Any) -> None:
    session = serve(worker, CALL)
    found = whole((await worker.chat("Hi", tools=TOOLS, tool_choice="none")).json)
    assert prompt(worker, session) == "user:Hi|"
    assert (found["content"], found["calls"]) == (CALL, [])


async def test_choice_required_begins_the_call_in_the_prompt(worker: Any) -> None:
    session = serve(worker, 'g", "arguments": {"x": 1}}</tool_call>')
    found = whole((await worker.chat("Hi", tools=TOOLS, tool_choice="required")).json)
    assert prompt(worker, session).endswith('user:Hi|<tool_call>\n{"name": "')
    assert [(c["name"], c["arguments"]) for c in found["calls"]] == [("g", '{"x": 1}')]
    assert (found["content"], found["finish_reason"]) == ("", "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_named_choice_leaves_only_the_arguments(
    worker: Any, frames: Any, stream: bool
) -> None:
    session = serve(worker, ' {"x": 1}}</tool_call>')
    named = {"type": "function", "function": {"name": "g"}}
    result = await worker.chat("Hi", tools=TOOLS, tool_choice=named, stream=stream)
    found = joined(frames(result.content)) if stream else whole(result.json)
    assert prompt(worker, session).endswith('{"name": "g", "arguments":')
    assert [(c["name"], c["arguments"]) for c in found["calls"]] == [("g", '{"x": 1}')]
    assert found["finish_reason"] == "stop"


async def test_without_parallel_calls_only_the_first_is_told(worker: Any) -> None:
    serve(worker, TWO)
    result = await worker.chat("Hi", tools=TOOLS, parallel_tool_calls=False)
    assert [call["name"] for call in whole(result.json)["calls"]] == ["f"]


async def test_a_call_that_is_cut_says_length(worker: Any) -> None:
    serve(worker, CALL)
    result = await worker.chat("Hi", tools=TOOLS, max_tokens=40)
    found = whole(result.json)
    assert found["finish_reason"] == "length"
    assert '{"x": "é"}'.startswith(found["calls"][0]["arguments"])


async def test_usage_counts_the_tokens_of_calls(worker: Any, frames: Any) -> None:
    serve(worker, TWO)
    plain = (await worker.chat("Hi", tools=TOOLS)).json["usage"]
    result = await worker.chat(
        "Hi", tools=TOOLS, stream=True, stream_options={"include_usage": True}
    )
    assert frames(result.content)[-1]["usage"] == plain


async def test_special_tokens_that_mark_calls_reach_the_parser(worker: Any) -> None:
    """<|im_start|> plays the part of a marker that the tokenizer hides."""

    class Marked(Mistral):
        special_tokens = ("<|im_start|>",)

        def parser(self, names: Any) -> JsonCalls:
            return JsonCalls("<|im_start|>")

    session = worker.session('<|im_start|>[{"name": "f", "arguments": {}}]<|endoftext|>')
    entry = worker.entry(session, template=None)
    parts = TextParts(worker.tokenizer, ChatTemplate(TEMPLATE), Marked())
    worker.directory.publish([replace(entry, text=parts)])
    found = whole((await worker.chat("Hi", tools=TOOLS)).json)
    assert (found["content"], [c["name"] for c in found["calls"]]) == ("", ["f"])
    assert len(found["calls"][0]["id"]) == 9


async def test_a_conversation_with_calls_goes_through_the_template(worker: Any) -> None:
    session = serve(worker, "ok")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 5}'}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    result = await worker.chat(messages=messages, tools=TOOLS)
    assert result.status_code == 200
    assert prompt(worker, session) == "f;g;user:Hi|assistant:f=5|tool:sunny|"


@pytest.mark.parametrize("strict", [False, True])
async def test_calls_that_cannot_be_held_are_refused_only_of_strict_tools(
    worker: Any, calling: Any, strict: bool
) -> None:
    session = calling(worker, '<tool_call>\n{"name": "t0", "arguments": {}}\n</tool_call>')
    anything = {"type": "object"}  # of so many even the beginnings are too much
    tools = [
        {
            "type": "function",
            "function": {"name": f"t{n}", "parameters": anything, "strict": strict},
        }
        for n in range(8)
    ]
    result = await worker.chat(tools=tools, tool_choice="required")
    assert result.status_code == (400 if strict else 200)
    if strict:
        assert result.json["error"]["param"] == "tools"
        assert "tools[5].function.parameters" in result.json["error"]["message"]
    else:
        assert session.requests[0].grammar is None


async def test_calls_that_must_be_made_are_constrained(worker: Any, calling: Any) -> None:
    session = calling(worker, "f")
    tools = [{"type": "function", "function": {"name": "t"}}]
    for choice, constrained in (("auto", False), ("required", True)):
        await worker.chat(tools=tools, tool_choice=choice)
        grammar = session.requests.pop().grammar
        assert (grammar is not None) is constrained
    assert grammar.param == "tools"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "search", "function": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].function.name"),
    ({"tools": "f"}, "tools"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]},
        "tools[0].function.strict",
    ),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "always"}, "tool_choice"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "h"}}},
        "tool_choice.function.name",
    ),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages[0].function_call"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
async def test_wrong_fields_are_named(worker: Any, fields: dict[str, Any], param: str) -> None:
    session = serve(worker, "ok")
    result = await worker.chat("Hi", **fields)
    assert (result.status_code, result.json["error"]["param"]) == (400, param)
    assert not session.requests


@pytest.mark.parametrize("arguments", ["{", "[1]", 5, "null", "[" * 100_000])
async def test_wrong_arguments_of_calls_are_named(worker: Any, arguments: Any) -> None:
    serve(worker, "ok")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    result = await worker.chat(messages=[{"role": "assistant", "tool_calls": [call]}])
    assert result.status_code == 400
    where = "messages[0].tool_calls[0].function.arguments"
    assert result.json["error"]["param"] == where


async def test_models_that_cannot_call_say_so(worker: Any) -> None:
    serve(worker, "ok", template=CHAT_TEMPLATE)
    result = await worker.chat("Hi", tools=TOOLS)
    assert result.status_code == 400
    error = result.json["error"]
    assert (error["param"], error["code"]) == ("tools", "template_without_tools")
    assert "its chat template (chat_template.jinja) writes none" in error["message"]
    assert (await worker.chat("Hi", tools=TOOLS, tool_choice="none")).status_code == 200
    serve(worker, "ok", family="")
    result = await worker.chat("Hi", tools=TOOLS)
    assert result.status_code == 400
    assert "no tool_parser" in result.json["error"]["message"]


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("llama3_json", '{"name": "f", "parameters": {"x": 1}}'),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]'),
        ("pythonic", "[f(x=1)]"),
    ],
)
async def test_every_family(worker: Any, frames: Any, family: str, text: str) -> None:
    serve(worker, text, family=family)
    for stream in (False, True):
        result = await worker.chat("Hi", tools=TOOLS, stream=stream)
        found = joined(frames(result.content)) if stream else whole(result.json)
        assert found["finish_reason"] == "tool_calls"
        [call] = found["calls"]
        assert (call["name"], json.loads(call["arguments"])) == ("f", {"x": 1})
