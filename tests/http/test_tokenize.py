from __future__ import annotations

from typing import Any

import pytest

from blink_server.testing.tiny_tokenizer import IM_START


async def test_a_text_becomes_the_ids_that_a_completion_gets(worker: Any) -> None:
    session = worker.serve("ok")
    await worker.complete("Hello 你好")
    body = {"model": "tiny", "prompt": "Hello 你好", "return_token_strs": True}
    reply = (await worker.post("/tokenize", body)).json
    assert reply["tokens"] == list(session.requests[0].prompt_ids)
    assert reply["count"] == len(reply["tokens"]) == len(reply["token_strs"])
    assert reply["max_model_len"] == 128
    back = await worker.post("/detokenize", {"model": "tiny", "tokens": reply["tokens"]})
    assert back.json == {"prompt": "Hello 你好"}


async def test_a_conversation_becomes_the_ids_that_a_chat_gets(worker: Any) -> None:
    session = worker.serve("ok")
    await worker.chat("Hi")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    reply = (await worker.post("/tokenize", body)).json
    assert reply["tokens"] == list(session.requests[0].prompt_ids)
    shorter = (await worker.post("/tokenize", {**body, "add_generation_prompt": False})).json
    assert shorter["count"] < reply["count"]


async def test_texts_longer_than_the_context_and_empty_ones_are_counted(worker: Any) -> None:
    session = worker.serve("ok")
    reply = await worker.post("/tokenize", {"model": "tiny", "prompt": "Hello " * 500})
    assert reply.json["count"] > 128
    assert (await worker.post("/tokenize", {"model": "tiny", "prompt": ""})).json["count"] == 0
    assert not session.requests


async def test_the_beginning_of_sequence_is_optional(worker: Any) -> None:
    worker.serve("ok", bos_token_id=IM_START)
    body = {"model": "tiny", "prompt": "Hi"}
    assert (await worker.post("/tokenize", body)).json["tokens"][0] == IM_START
    bare = (await worker.post("/tokenize", {**body, "add_special_tokens": False})).json
    assert bare["tokens"][0] != IM_START


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "x", "stream": True}, "stream"),
        ("/tokenize", {"prompt": "\ud800"}, None),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}], "n": 2}, "n"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [100_000]}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
async def test_wrong_bodies_are_named(
    worker: Any, path: str, fields: dict[str, Any], param: str | None
) -> None:
    worker.serve("ok")
    result = await worker.post(path, {"model": "tiny", **fields})
    assert (result.status_code, result.json["error"]["param"]) == (400, param)


async def test_an_unknown_model(worker: Any) -> None:
    worker.serve("ok")
    result = await worker.post("/tokenize", {"model": "other", "prompt": "x"})
    assert result.status_code == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_puts_each_prompt_before_its_texts(
    worker: Any, frames: Any, stream: bool
) -> None:
    worker.serve(" there 😀")
    ids = worker.tokenizer.encode("Good 你", add_special_tokens=False)
    for prompt, begins in [(["Hello", "Bye"], ["Hello", "Bye"]), (ids, ["Good 你"])]:
        result = await worker.complete(prompt, n=2, echo=True, stream=stream, max_tokens=60)
        texts = [""] * (2 * len(begins))
        bodies = frames(result.content) if stream else [result.json]
        for choice in [choice for body in bodies for choice in body["choices"]]:
            texts[choice["index"]] += choice["text"]
        assert texts == [f"{begin} there 😀" for begin in begins for _ in range(2)]
