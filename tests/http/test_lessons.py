"""Twelve bugs that other servers had, each as a test named after its lesson.

On random answers and requests where that says more: streamed and whole answers are compared over
200 of them.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from blink_server.backend import TokenEvent
from blink_server.testing.fake_backend import answer

PIECES = [
    *("a", " word", "naïve ", "你好", "😀", "👩‍🚀", "e\u0301", "🇩🇪", "\n"),
    *("STOP", "ST", "T", "<b>", '"\\'),
]
PATHS = {"chat": "/v1/chat/completions", "complete": "/v1/completions"}


def texts_of(bodies: list[Any], count: int) -> list[str]:
    texts = [""] * count
    for choice in [choice for body in bodies for choice in body["choices"]]:
        part = choice.get("delta", choice.get("message", choice))
        texts[choice["index"]] += part.get("content", part.get("text")) or ""
    return texts


def ends_of(bodies: list[Any]) -> dict[int, list[str]]:
    ends: dict[int, list[str]] = {}
    for choice in [choice for body in bodies for choice in body["choices"]]:
        if choice["finish_reason"] is not None:
            ends.setdefault(choice["index"], []).append(choice["finish_reason"])
    return ends


@pytest.mark.parametrize("seed", range(200))
async def test_lesson_1_deltas_join_to_the_whole_text(worker: Any, frames: Any, seed: int) -> None:
    """Text, usage and ends of 200 random requests are equal, streamed and not."""
    rng = random.Random(seed)
    text = "".join(rng.choices(PIECES, k=rng.randint(0, 12)))
    worker.serve(answer(worker.tokenizer, text, eos=2, per_event=rng.choice([1, 2, 7])))
    fields: dict[str, Any] = {"max_tokens": rng.randint(1, 80), "n": rng.choice([1, 1, 2])}
    if text and rng.random() < 0.5:
        begin = rng.randrange(len(text))
        fields["stop"] = [text[begin : begin + rng.randint(1, 4)], "nowhere"]
        fields["include_stop_str_in_output"] = rng.random() < 0.3
    kind = rng.choice(list(PATHS))
    count = fields["n"]
    if kind == "complete" and rng.random() < 0.3:
        prompts = ["one", "two"]
        count *= 2
    else:
        prompts = ["one"]
    ask = worker.chat if kind == "chat" else worker.complete
    prompt = prompts[0] if kind == "chat" else prompts
    whole = (await ask(prompt, **fields)).json
    options = {"include_usage": True}
    result = await ask(prompt, **fields, stream=True, stream_options=options)
    chunks = frames(result.content)
    assert texts_of(chunks, count) == texts_of([whole], count)
    assert chunks[-1]["usage"] == whole["usage"]
    assert ends_of(chunks) == ends_of([whole])
    cut = any(reasons == ["length"] for reasons in ends_of(chunks).values())
    assert cut or "\ufffd" not in "".join(texts_of(chunks, count))


@pytest.mark.parametrize("at", range(17))
async def test_lesson_2_no_part_of_a_stop_string_leaks(worker: Any, frames: Any, at: int) -> None:
    stop, text = "😀STOP\né", "x" * 16
    worker.serve(text[:at] + stop + text[at:])
    session = worker.directory.entries[0].session
    chunks = frames((await worker.chat(stream=True, stop=stop)).content)
    assert texts_of(chunks, 1) == [text[:at]]
    assert session.in_flight == 0
    for length in range(1, len(stop)):
        worker.serve(text[:at] + stop[:length])
        chunks = frames((await worker.chat(stream=True, stop=stop)).content)
        assert texts_of(chunks, 1) == [text[:at] + stop[:length]]


async def test_lesson_3_streamed_usage_is_the_usage(worker: Any, frames: Any) -> None:
    worker.serve("some answer")
    fields = {"prompt": ["Hello", "Goodbye world"], "n": 2}
    whole = (await worker.complete(**fields)).json["usage"]
    options = {"include_usage": True}
    result = await worker.complete(**fields, stream=True, stream_options=options)
    *others, last = frames(result.content)
    assert last["usage"] == whole
    assert last["choices"] == []
    assert all(chunk["usage"] is None for chunk in others)


@pytest.mark.parametrize("stream", [True, False])
async def test_lesson_4_a_client_that_goes_away_frees_its_slots(worker: Any, stream: bool) -> None:
    session = worker.serve(lambda request: [TokenEvent([50]), asyncio.Event()])
    body = {"model": "tiny", "prompt": ["a", "b"], "n": 2, "stream": stream}
    task, _ = worker.open(PATHS["complete"], body)
    await session.attempted(4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert session.in_flight == 0


async def test_lesson_5_an_answer_over_the_context_is_cut_a_prompt_refused(worker: Any) -> None:
    session = worker.serve("x" * 500)
    result = await worker.complete([5] * 100, max_tokens=1000)
    assert result.json["choices"][0]["finish_reason"] == "length"
    assert session.requests[0].max_tokens == 28
    result = await worker.complete([5] * 128)
    assert (result.status_code, result.json["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("prompt", ["", [""], []])
async def test_lesson_6_an_empty_prompt_is_refused_and_harms_nobody(
    worker: Any, prompt: Any
) -> None:
    worker.serve("ok")
    assert (await worker.complete(prompt)).status_code == 400
    assert (await worker.complete("Hello")).status_code == 200


@pytest.mark.parametrize("n", [0, 9, 10**6, 10**18])
async def test_lesson_7_too_many_choices_are_refused_before_any_work(worker: Any, n: int) -> None:
    session = worker.serve("ok")
    for ask in (worker.chat, worker.complete):
        assert (await ask(n=n)).status_code == 400
    assert not session.requests


@pytest.mark.parametrize("path", PATHS.values())
@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[1]",
        b'"x"',
        b"\xff",
        b'{"model":"tiny","messages":[],"prompt":"x","response_format":{"type":"json_schema"}}',
    ],
)
async def test_lesson_8_malformed_bodies_are_the_clients_fault(
    worker: Any, path: str, body: bytes
) -> None:
    worker.serve("ok")
    result = await worker.post(path, body)
    assert result.status_code == 400
    assert set(result.json["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
async def test_lesson_9_null_content_never_reads_none(worker: Any, role: str) -> None:
    session = worker.serve("ok")
    assert (await worker.chat(messages=[{"role": role, "content": None}])).status_code == 200
    assert "None" not in worker.tokenizer.decode(session.requests[0].prompt_ids)


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool", "developer"])
async def test_lesson_10_text_parts_work_for_every_role(worker: Any, role: str) -> None:
    session = worker.serve("ok")
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert (await worker.chat(messages=[{"role": role, "content": parts}])).status_code == 200
    assert f"{role}\none\ntwo" in worker.tokenizer.decode(session.requests[0].prompt_ids)


@pytest.mark.parametrize("text", ["naïve 😀!", "你好 👩‍🚀", ""])
@pytest.mark.parametrize("fields", [{"logprobs": True}, {"logprobs": True, "top_logprobs": 2}])
async def test_lesson_11_bytes_of_logprobs_join_to_the_text(
    worker: Any, frames: Any, text: str, fields: dict[str, Any]
) -> None:
    worker.serve(text)
    whole = (await worker.chat(**fields)).json["choices"][0]
    entries = whole["logprobs"]["content"]
    assert bytes(b for entry in entries for b in entry["bytes"]) == text.encode()
    chunks = frames((await worker.chat(**fields, stream=True)).content)
    streamed = [
        entry
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]
    assert streamed == entries


@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"max_tokens": 1}, {"stop": "o"}])
async def test_lesson_12_one_end_mark_and_one_finish_reason_a_choice(
    worker: Any, frames: Any, fields: dict[str, Any]
) -> None:
    worker.serve("hello")
    for ask in (worker.chat, worker.complete):
        result = await ask(stream=True, **fields)
        assert result.content.count(b"[DONE]") == 1
        assert result.content.endswith(b"data: [DONE]\n\n")
        ends = ends_of(frames(result.content))
        assert sorted(ends) == list(range(fields.get("n", 1)))
        assert all(len(reasons) == 1 for reasons in ends.values())
