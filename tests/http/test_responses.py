"""/v1/responses: the same answers in OpenAI's newer shape."""

from __future__ import annotations

from typing import Any

import pytest

from blink_server.backend import TokenEvent
from blink_server.errors import EngineFailure

PATH = "/v1/responses"


async def respond(worker: Any, input_: Any = "Hi", **fields: Any) -> Any:
    return await worker.post(PATH, {"model": "tiny", "input": input_, **fields})


def prompt(worker: Any, session: Any) -> str:
    return str(worker.tokenizer.decode(session.requests[-1].prompt_ids, skip_special_tokens=False))


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two responses differ in their ids and times only."""

    def bare(response: dict[str, Any]) -> dict[str, Any]:
        output = [{**item, "id": "", "call_id": ""} for item in response["output"]]
        return {**response, "id": "", "created_at": 0, "output": output}

    return bare(one) == bare(other)


async def test_a_response(worker: Any) -> None:
    session = worker.serve("Hello 😀.")
    body = (await respond(worker, instructions="Be kind.", max_output_tokens=50)).json
    assert prompt(worker, session) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert (body["object"], body["status"], body["error"]) == ("response", "completed", None)
    [item] = body["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    part = {"type": "output_text", "text": "Hello 😀.", "annotations": [], "logprobs": []}
    assert item["content"] == [part]
    usage = body["usage"]
    assert usage["input_tokens"] == len(session.requests[0].prompt_ids)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert (body["instructions"], body["store"]) == ("Be kind.", False)


@pytest.mark.parametrize(
    "fields", [{}, {"max_output_tokens": 3}, {"include": ["message.output_text.logprobs"]}]
)
async def test_the_stream_comes_to_the_same_response(
    worker: Any, typed: Any, fields: dict[str, Any]
) -> None:
    worker.serve("Hello 你好 😀.")
    plain = (await respond(worker, **fields)).json
    events = typed((await respond(worker, stream=True, **fields)).content)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        f"response.{plain['status']}",
    ]
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    assert text == plain["output"][0]["content"][0]["text"]
    assert same(events[-1]["response"], plain)
    if "max_output_tokens" in fields:
        assert plain["incomplete_details"] == {"reason": "max_output_tokens"}
    if "include" in fields:
        entries = plain["output"][0]["content"][0]["logprobs"]
        assert bytes(b for entry in entries for b in entry["bytes"]).decode() == text


async def test_items_become_messages(worker: Any) -> None:
    session = worker.serve("ok")
    items = [
        {"type": "message", "role": "developer", "content": "Rules"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "sunny"},
    ]
    assert (await respond(worker, items)).status_code == 200
    turns = [("system", "Rules"), ("user", "a"), ("assistant", "b"), ("tool", "sunny")]
    expected = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    assert prompt(worker, session) == expected + "<|im_start|>assistant\n"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "c"}, "conversation"),
    ({"background": True}, "background"),
    ({"input": []}, "input"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "judge", "content": "x"}]}, "input[0].role"),
    ({"input": [{"type": "reasoning"}]}, "input[0].type"),
    ({"input": [{"type": "function_call", "call_id": "1"}]}, "input[0].name"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"messages": []}, "messages"),
    ({"input": None}, "input"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
async def test_wrong_fields_are_named(worker: Any, fields: dict[str, Any], param: str) -> None:
    session = worker.serve("ok")
    result = await worker.post(PATH, {"model": "tiny", "input": "Hi", **fields})
    assert (result.status_code, result.json["error"]["param"]) == (400, param)
    assert not session.requests


async def test_a_failure_in_a_stream_is_its_last_event(worker: Any, typed: Any) -> None:
    worker.serve(lambda request: [TokenEvent([50]), EngineFailure("the runner died")])
    events = typed((await respond(worker, stream=True)).content)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["message"] == "the runner died"


async def test_calls_are_items(worker: Any, typed: Any, calling: Any) -> None:
    session = calling(worker, 'Hm.\n<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>')
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    plain = (await respond(worker, tools=tools)).json
    assert prompt(worker, session).startswith("f;")
    assert [item["type"] for item in plain["output"]] == ["message", "function_call"]
    call = plain["output"][1]
    assert (call["name"], call["arguments"], call["status"]) == ("f", '{"x": 1}', "completed")
    events = typed((await respond(worker, tools=tools, stream=True)).content)
    assert same(events[-1]["response"], plain)
    deltas = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert "".join(deltas) == '{"x": 1}'
    assert events[-2]["item"]["arguments"] == '{"x": 1}'


async def test_a_named_tool_is_forced(worker: Any, calling: Any) -> None:
    calling(worker, ' {"x": 1}}</tool_call>')
    tools = [{"type": "function", "name": "f"}]
    choice = {"type": "function", "name": "f"}
    [item] = (await respond(worker, tools=tools, tool_choice=choice)).json["output"]
    assert (item["name"], item["arguments"].strip()) == ("f", '{"x": 1}')
