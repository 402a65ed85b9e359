from __future__ import annotations

from typing import Any

import pytest


def prompt_text(worker: Any, session: Any) -> str:
    ids = session.requests[-1].prompt_ids
    return str(worker.tokenizer.decode(ids, skip_special_tokens=False))


async def test_a_conversation(worker: Any) -> None:
    session = worker.serve("Hello there.")
    result = await worker.chat("Hi")
    assert result.status_code == 200
    body = result.json
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello there.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert prompt_text(worker, session) == expected
    assert session.requests[0].max_tokens == 128 - len(session.requests[0].prompt_ids)


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
async def test_content_may_be_text_parts_for_every_role(worker: Any, role: str) -> None:
    session = worker.serve("ok")
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    result = await worker.chat(messages=[{"role": role, "content": parts}])
    assert result.status_code == 200
    assert f"<|im_start|>{role}\none\ntwo<|im_end|>" in prompt_text(worker, session)


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
async def test_null_content_never_reads_none(worker: Any, role: str) -> None:
    session = worker.serve("ok")
    await worker.chat(messages=[{"role": role, "content": None}])
    assert f"<|im_start|>{role}\n<|im_end|>" in prompt_text(worker, session)


async def test_template_options(worker: Any) -> None:
    template = "{{ mood }}{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}"
    session = worker.serve("ok", template=template)
    await worker.chat("Hi", chat_template_kwargs={"mood": "calm "}, add_generation_prompt=False)
    assert prompt_text(worker, session) == "calm Hi"


async def test_a_refusing_template_is_a_bad_request(worker: Any) -> None:
    worker.serve("ok", template="{{ raise_exception('roles must alternate') }}")
    result = await worker.chat("Hi")
    assert result.status_code == 400
    assert "roles must alternate" in result.json["error"]["message"]


async def test_a_model_without_template_says_so(worker: Any) -> None:
    worker.serve("ok", template=None)
    result = await worker.chat("Hi")
    assert result.status_code == 400
    assert "'tiny' has no chat template" in result.json["error"]["message"]


async def test_logprobs_alone_work_and_their_bytes_join_to_the_text(worker: Any) -> None:
    session = worker.serve("naïve 😀!")
    choice = (await worker.chat("Hi", logprobs=True)).json["choices"][0]
    content = choice["logprobs"]["content"]
    joined = bytes(byte for token in content for byte in token["bytes"])
    assert joined.decode() == choice["message"]["content"] == "naïve 😀!"
    assert all(token["top_logprobs"] == [] for token in content)
    assert session.requests[0].sampling.logprobs == 0


async def test_streamed_logprobs_are_those_of_the_whole_answer(worker: Any, frames: Any) -> None:
    worker.serve("abc")
    whole = (await worker.chat("Hi", logprobs=True, top_logprobs=1)).json["choices"][0]["logprobs"]
    body = await worker.chat("Hi", logprobs=True, top_logprobs=1, stream=True)
    choices = [choice for chunk in frames(body.content) for choice in chunk["choices"]]
    parts = [choice["logprobs"] for choice in choices if choice["logprobs"] is not None]
    assert {tuple(part) for part in parts} == {tuple(whole)} == {("content", "refusal")}
    assert [entry for part in parts for entry in part["content"]] == whole["content"]


async def test_top_logprobs(worker: Any) -> None:
    worker.serve("abc")
    choice = (await worker.chat("Hi", logprobs=True, top_logprobs=3)).json["choices"][0]
    content = choice["logprobs"]["content"]
    assert [len(token["top_logprobs"]) for token in content] == [3] * len(content)
    assert content[0]["top_logprobs"][0]["token"] == content[0]["token"]


async def test_max_completion_tokens_wins_over_max_tokens(worker: Any) -> None:
    session = worker.serve("x" * 50)
    await worker.chat("Hi", max_tokens=9, max_completion_tokens=4)
    assert session.requests[0].max_tokens == 4


async def test_special_tokens_are_skipped_unless_asked_for(worker: Any) -> None:
    worker.serve("a<|im_start|>b")
    assert (await worker.chat()).json["choices"][0]["message"]["content"] == "ab"
    shown = (await worker.chat(skip_special_tokens=False)).json["choices"][0]["message"]
    assert shown["content"] == "a<|im_start|>b"


@pytest.mark.parametrize(("include", "text"), [(False, "one "), (True, "one STOP")])
async def test_a_stop_string_ends_the_text_and_cancels_the_slot(
    worker: Any, include: bool, text: str
) -> None:
    session = worker.serve("one STOP two three")
    result = await worker.chat(stop=["nothing", "STOP"], include_stop_str_in_output=include)
    choice = result.json["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    assert session.streams[0].cancelled.is_set()
    assert session.in_flight == 0


async def test_a_stop_token_ends_the_text(worker: Any) -> None:
    worker.serve("ab!cd")
    stop = worker.tokenizer.encode("!", add_special_tokens=False)
    choice = (await worker.chat(stop_token_ids=stop)).json["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("ab", "stop")
