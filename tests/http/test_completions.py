from __future__ import annotations

from typing import Any

import pytest

from blink_server.backend import FinishReason
from blink_server.testing.fake_backend import events


async def test_a_text_prompt(worker: Any) -> None:
    session = worker.serve(" world! 😀")
    result = await worker.complete("Hello", max_tokens=50)
    assert result.status_code == 200
    body = result.json
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["model"] == "tiny"
    assert body["choices"] == [
        {"index": 0, "text": " world! 😀", "logprobs": None, "finish_reason": "stop"}
    ]
    prompt = worker.tokenizer.encode("Hello", add_special_tokens=True)
    assert list(session.requests[0].prompt_ids) == prompt
    generated = len(worker.tokenizer.encode(" world! 😀", add_special_tokens=False)) + 1
    assert body["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": generated,
        "total_tokens": len(prompt) + generated,
    }


@pytest.mark.parametrize(
    ("prompt", "count"),
    [(["Hello", "Bye"], 2), ([5, 6, 7], 1), ([[5, 6], [7]], 2), (["Hello", [5]], 2)],
)
async def test_prompts_of_every_form(worker: Any, prompt: Any, count: int) -> None:
    session = worker.serve("ok")
    body = (await worker.complete(prompt)).json
    assert [choice["index"] for choice in body["choices"]] == list(range(count))
    assert len(session.requests) == count
    if prompt == [[5, 6], [7]]:
        assert [list(request.prompt_ids) for request in session.requests] == prompt
        assert body["usage"]["prompt_tokens"] == 3


async def test_choices_count_prompt_index_times_n_plus_i(worker: Any) -> None:
    def respond(request: Any) -> Any:
        text = f"{request.prompt_ids[0]}:{request.sampling.seed}"
        return events(worker.tokenizer.encode(text, add_special_tokens=False))[:-1] + events(
            [2], reason=FinishReason.STOP
        )

    worker.serve(respond)
    body = (await worker.complete([[5], [6]], n=2, seed=40)).json
    texts = [choice["text"].partition(":")[0] for choice in body["choices"]]
    assert texts == ["5", "5", "6", "6"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 2


async def test_seeds_follow_the_number_of_the_choice(worker: Any) -> None:
    session = worker.serve("ok")
    await worker.complete([[5], [6]], n=2, seed=40)
    assert [request.sampling.seed for request in session.requests] == [40, 41, 40, 41]
    await worker.complete([[5]], n=2)
    assert session.requests[-1].sampling.seed != session.requests[-2].sampling.seed


async def test_every_sampling_field_reaches_the_session(worker: Any) -> None:
    session = worker.serve("ok")
    sampling = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "presence_penalty": -1,
        "frequency_penalty": 2,
        "seed": 9,
    }
    await worker.complete(
        "Hello",
        **sampling,
        logit_bias={"5": -100, "7": 1.5},
        logprobs=2,
        max_tokens=9,
        min_tokens=3,
        stop_token_ids=[11],
        ignore_eos=True,
        priority=4,
        user="somebody",
    )
    request = session.requests[0]
    for name, value in sampling.items():
        assert getattr(request.sampling, name) == value
    assert request.sampling.logit_bias == {5: -100, 7: 1.5}
    assert (request.sampling.logprobs, request.max_tokens, request.min_tokens) == (2, 9, 3)
    assert (request.stop_token_ids, request.ignore_eos, request.priority) == ((11,), True, 4)


@pytest.mark.parametrize("priority", [-(2**63), -1, 0, 4, 2**63 - 1])
async def test_every_whole_number_is_a_priority(worker: Any, priority: int) -> None:
    session = worker.serve("ok")
    assert (await worker.complete(priority=priority)).status_code == 200
    assert session.requests[0].priority == priority


async def test_the_models_defaults_apply_where_the_request_is_silent(worker: Any) -> None:
    session = worker.serve("ok", default_sampling={"temperature": 0.2, "top_p": 0.9, "top_k": 40})
    await worker.complete("Hello", top_p=0.5, top_k=-1, min_p=1)
    sampling = session.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.2, 0.5, 0)
    assert 0.999999 < sampling.min_p < 1


async def test_a_beginning_of_sequence_id_is_put_before_text_once(worker: Any) -> None:
    session = worker.serve("ok", bos_token_id=1)
    await worker.complete(["Hello", "<|im_start|>Hello"])
    await worker.complete("Hello", add_special_tokens=False)
    await worker.complete([5])
    starts = [list(request.prompt_ids)[:2] for request in session.requests]
    hello = worker.tokenizer.encode("Hello", add_special_tokens=False)
    assert starts == [[1, hello[0]], [1, hello[0]], hello[:2], [5]]


async def test_sixteen_tokens_unless_asked_otherwise(worker: Any) -> None:
    session = worker.serve("x" * 40)
    body = (await worker.complete("Hello")).json
    assert session.requests[0].max_tokens == 16
    assert body["choices"][0]["finish_reason"] == "length"


async def test_prompt_and_max_tokens_over_the_context_are_capped(worker: Any) -> None:
    session = worker.serve("x" * 500)
    result = await worker.complete([5] * 120, max_tokens=50)
    assert result.status_code == 200
    assert session.requests[0].max_tokens == 8
    assert result.json["choices"][0]["finish_reason"] == "length"
    assert result.json["usage"]["total_tokens"] == 128


@pytest.mark.parametrize("length", [128, 500])
async def test_a_prompt_over_the_context_is_refused(worker: Any, length: int) -> None:
    session = worker.serve("x")
    result = await worker.complete([5] * length)
    assert result.status_code == 400
    assert result.json["error"]["code"] == "context_length_exceeded"
    assert not session.requests


async def test_logprobs(worker: Any) -> None:
    worker.serve("a 😀")
    choice = (await worker.complete("Hello", logprobs=2)).json["choices"][0]
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"])
    assert set(logprobs["token_logprobs"]) == {-0.5}
    assert logprobs["tokens"][0] == "a"
    assert logprobs["text_offset"][0] == 0
    assert all(1 <= len(top) <= 3 for top in logprobs["top_logprobs"])
    assert logprobs["tokens"][0] in logprobs["top_logprobs"][0]


async def test_a_long_text_is_encoded_to_the_same_ids(worker: Any) -> None:
    text = "Hello world " * 1000
    worker.serve("x")
    result = await worker.post("/tokenize", {"model": "tiny", "prompt": text})
    assert result.json["tokens"] == worker.tokenizer.encode(text, add_special_tokens=True)
