"""The real `openai` client against the application under gunicorn's asgi worker."""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

ANSWER = "naïve 你好 😀 STOP the end"
LIMIT_SECONDS = 30  # for what should take milliseconds


@dataclass
class Server:
    client: openai.OpenAI
    port: int
    pipe: int  # where the model "endless" tells that a request has begun and that all have ended

    def wait_for(self, word: bytes) -> None:
        readable, _, _ = select.select([self.pipe], [], [], LIMIT_SECONDS)
        assert readable, f"the server has not told {word!r}"
        assert os.read(self.pipe, len(word) + 1) == word + b"\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    reader, writer = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = [
            *(sys.executable, "-m", "gunicorn", "--worker-class", "asgi"),
            *("--bind", f"fd://{listener.fileno()}", "--asgi-disconnect-grace-period", "0"),
            *("--graceful-timeout", "1", "--no-control-socket", "--log-level", "warning"),
            "fake_server:make_app()",
        ]
        paths = [str(Path(__file__).parent), *sys.path]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "BLINK_TEST_PIPE": str(writer),
        }
        process = subprocess.Popen(
            command,
            env=environment,
            pass_fds=[listener.fileno(), writer],
            cwd=tmp_path_factory.mktemp("server"),
        )
    os.close(writer)
    try:
        url = f"http://127.0.0.1:{port}/v1"
        client = openai.OpenAI(base_url=url, api_key="secret", max_retries=0, timeout=LIMIT_SECONDS)
        with client:
            yield Server(client, port, reader)
    finally:
        process.terminate()
        process.wait(LIMIT_SECONDS)
        os.close(reader)


def chat(server: Server, model: str = "tiny", **options: Any) -> Any:
    messages = [{"role": "user", "content": "Hi"}]
    create: Any = server.client.chat.completions.create
    return create(model=model, messages=messages, **options)


def test_models(server: Server) -> None:
    assert "tiny" in [model.id for model in server.client.models.list()]
    assert server.client.models.retrieve("tiny").id == "tiny"


def test_chat_and_its_stream_agree(server: Server) -> None:
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


def test_several_choices_and_prompts(server: Server) -> None:
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


def test_stop_strings(server: Server) -> None:
    before = ANSWER.partition("STOP")[0]
    assert chat(server, stop=["STOP"]).choices[0].message.content == before
    streamed = chat(server, stop="STOP", stream=True)
    pieces = [choice.delta.content or "" for chunk in streamed for choice in chunk.choices]
    assert "".join(pieces) == before


def test_log_probabilities(server: Server) -> None:
    choice = chat(server, logprobs=True, top_logprobs=2).choices[0]
    content = choice.logprobs.content
    assert bytes(b for token in content for b in token.bytes).decode() == ANSWER
    assert all(len(token.top_logprobs) == 2 for token in content)
    completion = server.client.completions.create(model="tiny", prompt="a", logprobs=3)
    logprobs = completion.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs)


@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_that_is_left_frees_its_slots(server: Server, n: int) -> None:
    stream = chat(server, "endless", stream=True, n=n)
    next(iter(stream))
    server.wait_for(b"begun")
    stream.close()
    server.wait_for(b"ended")


def test_a_plain_request_that_is_left_frees_its_slot(server: Server) -> None:
    body = json.dumps({"model": "endless", "prompt": "x"})
    headers = {"Content-Type": "application/json", "Authorization": "Bearer secret"}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_SECONDS)
    connection.request("POST", "/v1/completions", body, headers)
    server.wait_for(b"begun")
    connection.close()
    server.wait_for(b"ended")


def test_errors(server: Server) -> None:
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


def test_a_failure_in_a_stream(server: Server) -> None:
    stream = iter(chat(server, "broken", stream=True))
    assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "x"]
    with pytest.raises(openai.APIError, match="the runner died"):
        next(stream)


def test_the_client_keeps_its_connection_after_errors(server: Server) -> None:
    for _ in range(3):
        with pytest.raises(openai.BadRequestError):
            server.client.completions.create(model="tiny", prompt="")
        assert chat(server).choices[0].message.content == ANSWER
