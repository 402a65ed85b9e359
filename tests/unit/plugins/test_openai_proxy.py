"""The plugin `openai_proxy` against a server that follows a script, over real connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from blink_server.backend import (
    Endpoint,
    FinishReason,
    GenerateRequest,
    ModelVersion,
    SamplingParams,
    Session,
    TokenEvent,
    TokenUsage,
)
from blink_server.errors import (
    EngineFailure,
    InvalidRequest,
    Overloaded,
    RunnerLost,
    Unavailable,
)
from blink_server.plugins import Plugins, load_plugins
from blink_server.testing.scripted_server import Answer, ScriptedServer, events, refusal, reply

PLUGINS = Path(__file__).parents[3] / "plugins"


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins([PLUGINS])


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.stop()


def version(url: str, directory: Path, **options: Any) -> ModelVersion:
    taken = {"model": "theirs", "api_key_file": None, "connect_seconds": 5, "silence_seconds": 9}
    config = {
        "backend_options": {"url": url, **taken, **options},
        "limits": {"context_length": 64, "max_queue": 9},
        "tokenizer": {"name": "openai_proxy"},
    }
    return ModelVersion("mine", 1, directory, config)


Open = Callable[..., Awaitable[Session]]


@pytest.fixture
async def connect(server: ScriptedServer, plugins: Plugins, tmp_path: Path) -> AsyncIterator[Open]:
    url = await server.start()
    sessions: list[Session] = []

    async def connect(**options: Any) -> Session:
        backend = plugins.backends["openai_proxy"]
        found = version(url, tmp_path, **options)
        sessions.append(await backend.connect(found, Endpoint("workers", {})))
        return sessions[-1]

    yield connect
    for session in sessions:
        await session.close()


def request(plugins: Plugins, text: str, max_tokens: int = 5, **fields: Any) -> GenerateRequest:
    tokenizer = plugins.tokenizers["openai_proxy"](Path(), {})
    ids = fields.pop("prompt_ids", tokenizer.encode(text, add_special_tokens=True))
    return GenerateRequest(prompt_ids=ids, max_tokens=max_tokens, **fields)


async def answered(session: Session, asked: GenerateRequest) -> list[TokenEvent]:
    return [event async for event in await session.submit(asked)]


def text_of(plugins: Plugins, found: list[TokenEvent]) -> str:
    tokenizer = plugins.tokenizers["openai_proxy"](Path(), {})
    return tokenizer.decode([each for event in found for each in event.token_ids])


async def test_a_completion_goes_on_as_text_and_comes_back_token_by_token(
    server: ScriptedServer, connect: Open, plugins: Plugins
) -> None:
    server.answer = events(
        {"text": "naï"}, {"text": "ve 😀"}, {"text": "", "finish_reason": "stop"}
    )
    found = await answered(await connect(), request(plugins, "Tell 你好"))
    assert text_of(plugins, found) == "naïve 😀"
    assert [event.reason for event in found] == [None, None, FinishReason.STOP]
    assert [event.usage for event in found] == [
        TokenUsage(0, 1),
        TokenUsage(0, 2),
        TokenUsage(11, 22),
    ]
    [(path, headers, body)] = server.asked
    assert path == "completions"
    assert "authorization" not in headers
    assert body == {
        "prompt": "Tell 你好",
        "model": "theirs",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 0,
        "max_tokens": 5,
    }


async def test_what_was_asked_of_sampling_goes_on(
    server: ScriptedServer, connect: Open, plugins: Plugins
) -> None:
    server.answer = events({"finish_reason": "length"})
    sampling = SamplingParams(temperature=0.5, top_k=4, min_p=0.1, logit_bias={7: 2.0})
    asked = request(plugins, "x", sampling=sampling, stop_token_ids=[3], ignore_eos=True)
    found = await answered(await connect(), asked)
    assert [event.reason for event in found] == [FinishReason.LENGTH]
    body = server.asked[0][2]
    expected = {"temperature": 0.5, "top_k": 4, "min_p": 0.1, "logit_bias": {"7": 2.0}}
    assert expected.items() <= body.items()
    assert body["stop_token_ids"] == [3]
    assert body["ignore_eos"] is True
    assert "repetition_penalty" not in body


async def test_the_length_is_left_to_the_server_where_nobody_said_one(
    server: ScriptedServer, connect: Open, plugins: Plugins
) -> None:
    server.answer = events({"finish_reason": "stop"})
    session = await connect()
    await answered(session, request(plugins, "four", max_tokens=1000))
    await answered(session, request(plugins, CHAT + '{"messages": []}', max_tokens=1000))
    assert server.asked[0][2]["max_tokens"] == 60
    assert "max_tokens" not in server.asked[1][2]


async def test_token_ids_go_on_as_they_are_and_never_with_text(
    server: ScriptedServer, connect: Open, plugins: Plugins
) -> None:
    server.answer = events({"finish_reason": "stop"})
    session = await connect()
    await answered(session, request(plugins, "", prompt_ids=[5, 6]))
    assert server.asked[0][2]["prompt"] == [5, 6]
    with pytest.raises(InvalidRequest, match="mixes"):
        await answered(session, request(plugins, "", prompt_ids=[5, (1 << 30) + 65]))


CHAT = "<|openai_chat|>"


async def test_a_chat_goes_on_with_its_tools_and_calls_come_back(
    server: ScriptedServer, connect: Open, plugins: Plugins
) -> None:
    def call(**function: str) -> dict[str, Any]:
        return {"delta": {"tool_calls": [{"index": 0, "function": function}]}}

    server.answer = events(
        {"delta": {"content": "Let me see."}},
        call(name="get", arguments=""),
        call(arguments='{"a'),
        call(arguments='": 1}'),
        {"delta": {}, "finish_reason": "tool_calls"},
    )
    before = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"b": 2}}}
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [before]}]
    chat = {"messages": messages, "tools": [{"type": "function"}]}
    form = plugins.tool_parsers["openai_proxy"]()
    prompt = CHAT + json.dumps(chat) + form.opening("get")
    found = await answered(await connect(), request(plugins, prompt))
    path, _, body = server.asked[0]
    assert path == "chat/completions"
    assert body["messages"][0] == messages[0]
    assert body["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"b": 2}'
    assert body["tools"] == chat["tools"]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "get"}}
    assert found[-1].reason is FinishReason.STOP
    parser = form.parser(["get"])
    content, deltas = parser.push(form.opening("get") + text_of(plugins, found))
    assert content == "Let me see."
    assert [delta.name for delta in deltas] == ["get", None, None]
    assert "".join(delta.arguments for delta in deltas) == '{"a": 1}'


async def test_the_key_is_shown(
    server: ScriptedServer, connect: Open, plugins: Plugins, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("secret\n")
    server.answer = events({"finish_reason": "stop"})
    await answered(await connect(api_key_file="key"), request(plugins, "x"))
    assert server.asked[0][1]["authorization"] == "bearer secret"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("400 Bad", InvalidRequest),
        ("401 No", Unavailable),
        ("404 No", Unavailable),
        ("429 Later", Overloaded),
        ("503 Later", Overloaded),
        ("500 Oh", EngineFailure),
    ],
)
async def test_a_refusal_is_told_as_what_it_is(
    server: ScriptedServer, connect: Open, plugins: Plugins, status: str, kind: type[Exception]
) -> None:
    server.answer = refusal(status, "Retry-After: 7")
    with pytest.raises(kind, match="as it says") as caught:
        await answered(await connect(), request(plugins, "x"))
    if isinstance(caught.value, Overloaded):
        assert caught.value.retry_after == 7


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (events({"text": "x"}), "without a reason"),
        (events({"error": {"message": "out of memory"}}), "out of memory"),
    ],
)
async def test_an_answer_that_breaks_off_is_a_failure(
    server: ScriptedServer, connect: Open, plugins: Plugins, answer: Answer, message: str
) -> None:
    server.answer = answer
    with pytest.raises(EngineFailure, match=message):
        await answered(await connect(), request(plugins, "x"))


async def test_a_cancelled_request_hangs_up(
    server: ScriptedServer, connect: Open, plugins: Plugins
) -> None:
    hung_up = asyncio.Event()

    async def endless(path: str, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        async for piece in events({"text": "x"}, usage=None, done=False)(path, reader):
            yield piece
        assert await reader.read() == b""
        hung_up.set()

    server.answer = endless
    session = await connect()
    stream = await session.submit(request(plugins, "x"))
    found = []
    async for event in stream:
        found.append(event)
        stream.cancel()
    assert found[-1].reason is FinishReason.CANCELLED
    async with asyncio.timeout(10):
        await hung_up.wait()
    assert session.in_flight == 0


async def test_a_server_that_goes_away_loses_the_session(
    server: ScriptedServer, connect: Open, plugins: Plugins
) -> None:
    session = await connect()
    reasons: list[str] = []
    session.on_closed(reasons.append)
    server.stop()
    with pytest.raises(RunnerLost, match="cannot be reached"):
        await answered(session, request(plugins, "x"))
    assert reasons == ["the server behind this model cannot be reached (ConnectError)"]
    with pytest.raises(Unavailable, match="its server cannot be reached"):
        await connect()


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (reply({"data": [{"id": "other"}]}), "no model 'theirs', but other"),
        (reply({}, "401 No"), "answers 401"),
        (reply({}, "502 Bad"), "answers 502"),
    ],
)
async def test_a_server_without_the_model_is_unavailable(
    server: ScriptedServer, connect: Open, models: bytes, message: str
) -> None:
    server.models = models
    with pytest.raises(Unavailable, match=message):
        await connect()


async def test_a_server_that_does_not_list_its_models_is_believed(
    server: ScriptedServer, connect: Open
) -> None:
    server.models = reply({}, "404 None")
    assert (await connect()).in_flight == 0


def test_check_names_what_is_wrong(plugins: Plugins, tmp_path: Path) -> None:
    backend = plugins.backends["openai_proxy"]
    assert list(backend.check(version("http://x/v1", tmp_path))) == []
    wrong = version("http://x/v1", tmp_path, api_key_file="gone")
    wrong.config["tokenizer"]["name"] = "huggingface"
    assert {problem.field for problem in backend.check(wrong)} == {
        "tokenizer.name",
        "backend_options.api_key_file",
    }
