from __future__ import annotations

import asyncio
from typing import Any

import pytest

from blink_server.backend import FinishReason, TokenEvent
from blink_server.errors import EngineFailure, RunnerLost
from blink_server.testing.fake_backend import answer, events

TEXT = "naïve 你好 😀, the end"


def joined(chunks: list[Any], index: int = 0) -> str:
    pieces = [
        choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index
    ]
    return "".join(pieces)


@pytest.mark.parametrize("per_event", [1, 3, 100])
@pytest.mark.parametrize("kind", ["chat", "complete"])
async def test_deltas_join_to_the_plain_text(
    worker: Any, frames: Any, kind: str, per_event: int
) -> None:
    worker.serve(answer(worker.tokenizer, TEXT, eos=2, per_event=per_event))
    ask = getattr(worker, kind)
    plain = (await ask(max_tokens=60)).json
    result = await ask(max_tokens=60, stream=True, stream_options={"include_usage": True})
    assert result.headers["content-type"].startswith("text/event-stream")
    chunks = frames(result.content)
    assert joined(chunks) == TEXT
    assert not any("\ufffd" in joined([chunk]) for chunk in chunks)
    assert chunks[-1]["usage"] == plain["usage"]
    assert chunks[-1]["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_the_first_chat_chunk_has_the_role_and_the_last_an_empty_delta(
    worker: Any, frames: Any
) -> None:
    worker.serve("Hi")
    chunks = frames((await worker.chat(stream=True)).content)
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    ]
    assert "usage" not in chunks[0]


async def test_tokens_that_come_together_go_out_as_one_chunk(worker: Any, frames: Any) -> None:
    worker.serve(answer(worker.tokenizer, "one two three", eos=2, per_event=100))
    chunks = frames((await worker.complete(stream=True)).content)
    assert [choice["text"] for chunk in chunks for choice in chunk["choices"]] == ["one two three"]


async def test_usage_with_n_and_two_prompts_equals_the_plain_usage(
    worker: Any, frames: Any
) -> None:
    worker.serve("some answer")
    plain = (await worker.complete(["Hello", "Goodbye world"], n=2)).json
    options = {"include_usage": True}
    result = await worker.complete(
        ["Hello", "Goodbye world"], n=2, stream=True, stream_options=options
    )
    chunks = frames(result.content)
    assert chunks[-1]["usage"] == plain["usage"]
    ends = [
        choice["index"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["finish_reason"] is not None
    ]
    assert sorted(ends) == [0, 1, 2, 3]
    assert [joined(chunks, index) for index in range(4)] == ["some answer"] * 4


async def test_usage_does_not_depend_on_batching_with_stop_strings(
    worker: Any, frames: Any
) -> None:
    usages = []
    for per_event in (1, 100):
        worker.serve(answer(worker.tokenizer, "one STOP two", eos=2, per_event=per_event))
        plain = (await worker.chat(stop="STOP")).json
        options = {"include_usage": True}
        chunks = frames(
            (await worker.chat(stop="STOP", stream=True, stream_options=options)).content
        )
        usages += [plain["usage"], chunks[-1]["usage"]]
        assert joined(chunks) == plain["choices"][0]["message"]["content"] == "one "
    assert usages == [usages[0]] * 4


async def test_continuous_usage_grows_to_the_final_one(worker: Any, frames: Any) -> None:
    worker.serve("abc")
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = frames((await worker.complete(stream=True, stream_options=options)).content)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == counts[-2]


async def test_no_part_of_a_stop_string_is_ever_sent(worker: Any, frames: Any) -> None:
    worker.serve("text ST STO STOP more")
    chunks = frames((await worker.chat(stream=True, stop="STOP")).content)
    assert joined(chunks) == "text ST STO "


async def test_what_was_held_back_is_sent_at_the_end(worker: Any, frames: Any) -> None:
    worker.serve("text ST")
    chunks = frames((await worker.chat(stream=True, stop="STOP")).content)
    assert joined(chunks) == "text ST"


async def test_streamed_logprobs_join_to_the_plain_ones(worker: Any, frames: Any) -> None:
    worker.serve(TEXT)
    fields = {"logprobs": True, "top_logprobs": 2, "max_tokens": 60}
    plain = (await worker.chat(**fields)).json["choices"][0]
    chunks = frames((await worker.chat(stream=True, **fields)).content)
    streamed = [
        entry
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]
    assert streamed == plain["logprobs"]["content"]
    assert bytes(b for entry in streamed for b in entry["bytes"]).decode() == TEXT


async def test_an_engine_failure_after_the_first_token_is_an_event(
    worker: Any, frames: Any
) -> None:
    worker.serve(lambda request: [TokenEvent([50]), EngineFailure("the runner died")])
    result = await worker.chat(stream=True)
    assert result.status_code == 200
    chunks = frames(result.content)
    assert chunks[-1]["error"]["message"] == "the runner died"
    assert chunks[-1]["error"]["type"] == "server_error"


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_failure_before_the_first_token_is_a_500(worker: Any, stream: bool) -> None:
    session = worker.serve(lambda request: [EngineFailure("the runner died")])
    result = await worker.chat(stream=stream)
    assert result.status_code == 500
    assert result.json["error"]["code"] == "engine_failure"
    assert session.in_flight == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_runner_lost_before_the_first_token_is_a_503_to_be_retried(
    worker: Any, stream: bool
) -> None:
    worker.serve(lambda request: [RunnerLost("the runner is gone")])
    result = await worker.chat(stream=stream)
    assert result.status_code == 503
    assert result.headers["Retry-After"] == "1"
    assert result.json["error"]["code"] == "runner_lost"
    assert result.json["error"]["message"] == "the runner is gone"


async def test_one_failing_choice_ends_all(worker: Any, frames: Any) -> None:
    never = asyncio.Event()

    def respond(request: Any) -> Any:
        if request.request_id.endswith("-0"):
            return [TokenEvent([50]), EngineFailure("gone")]
        return [never]

    session = worker.serve(respond)
    chunks = frames((await worker.chat(stream=True, n=2)).content)
    assert chunks[-1]["error"]["message"] == "gone"
    assert session.in_flight == 0


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.CANCELLED])
async def test_an_end_without_finish_reason_is_an_error(worker: Any, reason: FinishReason) -> None:
    worker.serve(lambda request: events([50], reason=reason))
    assert (await worker.chat()).status_code == 500


async def test_a_stream_that_just_stops_is_an_error(worker: Any) -> None:
    worker.serve(lambda request: [TokenEvent([50])])
    assert (await worker.chat()).status_code == 500
