"""The real `openai` client against the application under gunicorn's asgi worker."""

from __future__ import annotations

import http.client
import json
from typing import Any

import openai
import pytest

ANSWER = "naïve 你好 😀 STOP the end"
LIMIT_SECONDS = 30  # for what should take milliseconds


def chat(server: Any, model: str = "tiny", **options: Any) -> Any:
    messages = [{"role": "user", "content": "Hi"}]
    create: Any = server.client.chat.completions.create
    return create(model=model, messages=messages, **options)


def test_models(server: Any) -> None:
    assert "tiny" in [model.id for model in server.client.models.list()]
    assert server.client.models.retrieve("tiny").id == "tiny"


def test_chat_and_its_stream_agree(server: Any) -> None:
    plain = chat(server, max_tokens=100)
    assert plain.choices[0].message.content == ANSWER
    assert plain.choices[0].finish_reason == "stop"
    text, usage, reasons = "", None, []
    stream = chat(server, max_tokens=100, stream=True, stream_options={"include_usage": True})
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons.append(choice.finish_reason)
    assert text == ANSWER
    assert usage == plain.usage
    assert [reason for reason in reasons if reason] == ["stop"]


def test_several_choices_and_prompts(server: Any) -> None:
    completions = server.client.completions
    plain = completions.create(model="tiny", prompt=["a", "b c"], n=2, max_tokens=100)
    assert [choice.text for choice in plain.choices] == [ANSWER] * 4
    texts = [""] * 4
    usage = None
    for chunk in completions.create(
        model="tiny",
        prompt=["a", "b c"],
        n=2,
        max_tokens=100,
        stream=True,
        stream_options={"include_usage": True},
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [ANSWER] * 4
    assert usage == plain.usage


def test_stop_strings(server: Any) -> None:
    before = ANSWER.partition("STOP")[0]
    assert chat(server, stop=["STOP"]).choices[0].message.content == before
    streamed = chat(server, stop="STOP", stream=True)
    pieces = [choice.delta.content or "" for chunk in streamed for choice in chunk.choices]
    assert "".join(pieces) == before


def test_log_probabilities(server: Any) -> None:
    choice = chat(server, logprobs=True, top_logprobs=2).choices[0]
    content = choice.logprobs.content
    assert bytes(b for token in content for b in token.bytes).decode() == ANSWER
    assert all(len(token.top_logprobs) == 2 for token in content)
    completion = server.client.completions.create(model="tiny", prompt="a", logprobs=3)
    logprobs = completion.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs)


def test_echo(server: Any) -> None:
    completion = server.client.completions.create(
        model="tiny", prompt="Say: ", echo=True, max_tokens=100
    )
    assert completion.choices[0].text == f"Say: {ANSWER}"


FUNCTION = {"name": "get_weather", "parameters": {"type": "object"}}
TOOL: Any = {"type": "function", "function": FUNCTION}


def test_tool_calls(server: Any) -> None:
    plain = chat(server, "caller", tools=[TOOL]).choices[0]
    [call] = plain.message.tool_calls
    assert (call.function.name, plain.finish_reason) == ("get_weather", "tool_calls")
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    with server.client.chat.completions.stream(
        model="caller", messages=[{"role": "user", "content": "Hi"}], tools=[TOOL]
    ) as stream:
        streamed = stream.get_final_completion().choices[0]
    [other] = streamed.message.tool_calls or []
    assert other.function.arguments == call.function.arguments
    answered = [
        {"role": "user", "content": "Hi"},
        plain.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    create: Any = server.client.chat.completions.create
    assert create(model="tiny", messages=answered, tools=[]).choices[0].message.content == ANSWER


def test_responses(server: Any) -> None:
    plain = server.client.responses.create(model="tiny", input="Hi", instructions="Be kind.")
    assert (plain.output_text, plain.status) == (ANSWER, "completed")
    with server.client.responses.stream(model="tiny", input="Hi") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == ANSWER
    assert final.usage is not None
    assert plain.usage is not None
    assert final.usage.output_tokens == plain.usage.output_tokens
    tool: Any = {"type": "function", **FUNCTION, "strict": False}
    called = server.client.responses.create(model="caller", input="Hi", tools=[tool])
    [item] = called.output
    assert (item.type, item.name) == ("function_call", "get_weather")
    with pytest.raises(openai.BadRequestError, match="previous_response_id is not supported"):
        server.client.responses.create(model="tiny", input="Hi", previous_response_id=plain.id)


@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_that_is_left_frees_its_slots(server: Any, n: int) -> None:
    stream = chat(server, "endless", stream=True, n=n)
    next(iter(stream))
    server.wait_for(b"begun")
    stream.close()
    server.wait_for(b"ended")


def test_a_plain_request_that_is_left_frees_its_slot(server: Any) -> None:
    body = json.dumps({"model": "endless", "prompt": "x"})
    headers = {"Content-Type": "application/json", "Authorization": "Bearer secret"}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_SECONDS)
    connection.request("POST", "/v1/completions", body, headers)
    server.wait_for(b"begun")
    connection.close()
    server.wait_for(b"ended")


def test_errors(server: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="'nothing' does not exist"):
        chat(server, "nothing")
    with pytest.raises(openai.BadRequestError, match="temperature is 3") as bad:
        chat(server, temperature=3)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.AuthenticationError):
        server.client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.InternalServerError) as full:
        chat(server, "full")
    assert full.value.status_code == 503
    assert full.value.response.headers["retry-after"] == "2"
    with pytest.raises(openai.InternalServerError, match="the runner died"):
        chat(server, "broken-early", stream=True)


def test_a_failure_in_a_stream(server: Any) -> None:
    stream = iter(chat(server, "broken", stream=True))
    assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "x"]
    with pytest.raises(openai.APIError, match="the runner died"):
        next(stream)


def test_the_client_keeps_its_connection_after_errors(server: Any) -> None:
    for _ in range(3):
        with pytest.raises(openai.BadRequestError):
            server.client.completions.create(model="tiny", prompt="")
        assert chat(server).choices[0].message.content == ANSWER
