"""/v1/messages: the same answers in Anthropic's shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blink_server.backend import TokenEvent
from blink_server.errors import EngineFailure

PATH = "/v1/messages"
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]


async def ask(worker: Any, content: Any = "Hi", **fields: Any) -> Any:
    messages = fields.pop("messages", [{"role": "user", "content": content}])
    body = {"model": "tiny", "max_tokens": 90, "messages": messages, **fields}
    return await worker.post(PATH, body)


def prompt(worker: Any, session: Any) -> str:
    return str(worker.tokenizer.decode(session.requests[-1].prompt_ids, skip_special_tokens=False))


def put_together(events: list[Any]) -> dict[str, Any]:
    """The message that a stream's events come to."""
    message = events[0]["message"]
    parts: list[str] = []
    for event in events[1:]:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                parts = []
            case "content_block_delta":
                parts.append(event["delta"].get("text") or event["delta"].get("partial_json", ""))
            case "content_block_stop":
                block, text = message["content"][-1], "".join(parts)
                if block["type"] == "text":
                    block["text"] = text
                else:
                    block["input"] = json.loads(text)
            case "message_delta":
                message.update(event["delta"])
                message["usage"].update(event["usage"])
    return dict(message)


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    content = [{**block, "id": ""} for block in message["content"]]
    return {**message, "id": "", "content": content}


@pytest.mark.parametrize(
    ("fields", "text", "reason", "sequence"),
    [
        ({}, "Hello 你好 😀.", "end_turn", None),
        ({"max_tokens": 3}, None, "max_tokens", None),
        ({"stop_sequences": ["x", "你"]}, "Hello ", "stop_sequence", "你"),
    ],
)
async def test_a_message_and_its_stream(
    worker: Any, typed: Any, fields: Any, text: str | None, reason: str, sequence: str | None
) -> None:
    session = worker.serve("Hello 你好 😀.")
    plain = (await ask(worker, system="Be kind.", **fields)).json
    assert prompt(worker, session).startswith("<|im_start|>system\nBe kind.<|im_end|>\n")
    assert (plain["type"], plain["role"], plain["model"]) == ("message", "assistant", "tiny")
    assert (plain["stop_reason"], plain["stop_sequence"]) == (reason, sequence)
    if text is not None:
        assert plain["content"] == [{"type": "text", "text": text}]
    assert plain["usage"]["input_tokens"] == len(session.requests[0].prompt_ids)
    events = typed((await ask(worker, system="Be kind.", stream=True, **fields)).content)
    assert events[-1] == {"type": "message_stop"}
    assert without_ids(put_together(events)) == without_ids(plain)


async def test_calls_are_blocks(worker: Any, typed: Any, calling: Any) -> None:
    text = 'Hm.\n<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    calling(worker, text)
    plain = (await ask(worker, tools=TOOLS)).json
    assert [block["type"] for block in plain["content"]] == ["text", "tool_use"]
    assert plain["content"][1]["input"] == {"x": 1}
    assert plain["stop_reason"] == "tool_use"
    events = typed((await ask(worker, tools=TOOLS, stream=True)).content)
    assert without_ids(put_together(events)) == without_ids(plain)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "f"}])
async def test_a_call_can_be_forced(worker: Any, calling: Any, choice: dict[str, Any]) -> None:
    rest = ' {"x": 1}}</tool_call>' if "name" in choice else 'f", "arguments": {"x": 1}}'
    calling(worker, rest)
    plain = (await ask(worker, tools=TOOLS, tool_choice=choice)).json
    assert [block["name"] for block in plain["content"]] == ["f"]
    assert plain["stop_reason"] == "tool_use"


async def test_blocks_become_messages(worker: Any) -> None:
    session = worker.serve("ok")
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}]}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "b"}, call]},
        {"role": "user", "content": [result, {"type": "text", "text": "c"}]},
    ]
    assert (await ask(worker, messages=messages)).status_code == 200
    turns = [("user", "a"), ("assistant", "b"), ("tool", "r"), ("user", "c")]
    expected = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    assert prompt(worker, session) == expected + "<|im_start|>assistant\n"


BAD: list[dict[str, Any]] = [
    {"max_tokens": None},
    {"temperature": 1.5},
    {"messages": []},
    {"messages": [{"role": "system", "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]},
    {"stop_sequences": [""]},
    {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    {"tool_choice": {"type": "tool"}, "tools": TOOLS},
    {"unknown": 1},
]


@pytest.mark.parametrize("fields", BAD)
async def test_errors_have_anthropics_shape(worker: Any, fields: dict[str, Any]) -> None:
    session = worker.serve("ok")
    result = await ask(worker, **fields)
    assert (result.status_code, result.json["type"]) == (400, "error")
    assert result.json["error"]["type"] == "invalid_request_error"
    assert next(iter(fields)).partition("_")[0] in result.json["error"]["message"]
    assert not session.requests


async def test_a_failure_in_a_stream_is_its_last_event(worker: Any, typed: Any) -> None:
    worker.serve(lambda request: [TokenEvent([50]), EngineFailure("the runner died")])
    events = typed((await ask(worker, stream=True)).content)
    expected = {"type": "api_error", "message": "the runner died"}
    assert events[-1] == {"type": "error", "error": expected}
