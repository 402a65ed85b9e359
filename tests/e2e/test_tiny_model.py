"""Import, check, serve, ask: a tiny random model through every part, by the `openai` client."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from blink_server.testing.eventually import eventually
from blink_server.testing.server_process import ServerProcess, processes

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPTS = [f"Hello world {number}, the capital city" for number in range(10)]
Client = openai.AsyncOpenAI


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(tiny_repository: Path) -> AsyncIterator[str]:
    """A server with two workers; it must leave nothing behind."""
    directory = Path(tempfile.mkdtemp(prefix="blink-"))
    server = await ServerProcess.start(tiny_repository, directory / "run", "--workers=2")
    try:
        yield await server.ready()
        assert await server.stop() == 0
        assert processes(directory / "run") == []
        assert not (directory / "run").exists()
    finally:
        server.kill_everything()
        print(server.output)  # shown where a test fails
        shutil.rmtree(directory, ignore_errors=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(url: str) -> AsyncIterator[Client]:
    async with Client(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


async def complete(client: Client, prompt: Any = PROMPTS[0], **fields: Any) -> Any:
    options = {"max_tokens": 24, "temperature": 0, **fields}
    return await client.completions.create(model="tiny", prompt=prompt, **options)


async def chat(client: Client, content: str = PROMPTS[0], **fields: Any) -> Any:
    create: Any = client.chat.completions.create
    messages = [{"role": "user", "content": content}]
    return await create(
        model="tiny", messages=messages, **{"max_tokens": 24, "temperature": 0, **fields}
    )


async def streamed_text(stream: Any) -> str:
    text = ""
    async for chunk in stream:
        for choice in chunk.choices:
            text += (choice.delta.content or "") if hasattr(choice, "delta") else choice.text
    return text


async def test_models_are_listed(client: Client) -> None:
    (model,) = (await client.models.list()).data
    assert model.id == "tiny"
    assert (await client.models.retrieve("tiny")).id == "tiny"


async def test_streamed_and_whole_answers_are_equal(client: Client) -> None:
    whole = await complete(client)
    assert whole.usage.completion_tokens == 24
    assert whole.choices[0].finish_reason == "length"
    assert await streamed_text(await complete(client, stream=True)) == whole.choices[0].text
    message = (await chat(client)).choices[0].message.content
    assert message
    assert await streamed_text(await chat(client, stream=True)) == message


async def test_answers_do_not_depend_on_what_else_is_served(client: Client) -> None:
    alone = [(await complete(client, prompt)).choices[0].text for prompt in PROMPTS]
    together = await asyncio.gather(*(complete(client, prompt) for prompt in PROMPTS))
    assert [answer.choices[0].text for answer in together] == alone
    assert len(set(alone)) > 1


async def test_a_list_of_prompts_is_answered_in_order(client: Client) -> None:
    alone = [(await complete(client, prompt)).choices[0].text for prompt in PROMPTS[:3]]
    answer = await complete(client, PROMPTS[:3])
    assert [choice.text for choice in answer.choices] == alone
    assert answer.usage.completion_tokens == 3 * 24


async def test_token_ids_are_a_prompt_too(client: Client) -> None:
    assert (await complete(client, [5, 6, 7])).usage.prompt_tokens == 3


async def test_a_seed_decides_a_sampled_answer(client: Client) -> None:
    async def sampled(seed: int) -> str:
        answer = await complete(client, temperature=1.5, seed=seed)
        return str(answer.choices[0].text)

    first, second, other = [await sampled(seed) for seed in (7, 7, 8)]
    assert first == second
    assert first != other


async def test_log_probabilities_are_those_of_the_text(client: Client) -> None:
    (choice,) = (await chat(client, logprobs=True, top_logprobs=5)).choices
    shown = choice.logprobs.content
    written = b"".join(bytes(token.bytes) for token in shown)
    assert written.decode(errors="replace") == choice.message.content
    for token in shown:
        assert len(token.top_logprobs) == 5
        assert token.logprob <= 0
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob, abs=1e-5)


async def test_a_stop_string_ends_the_answer_before_it(client: Client) -> None:
    whole = (await complete(client)).choices[0].text
    stop = whole[len(whole) // 2 :][:3]
    (choice,) = (await complete(client, stop=stop)).choices
    assert choice.finish_reason == "stop"
    assert choice.text == whole[: whole.index(stop)]


async def test_a_prompt_longer_than_the_context_is_refused_and_no_other(client: Client) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await complete(client, [5] * 512)
    assert "512" in refused.value.message
    answer = await complete(client, [5] * 500, max_tokens=100)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12


async def test_an_unknown_model_is_named(client: Client) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        await client.completions.create(model="nobody", prompt="Hello")


async def test_metrics_count_tokens_of_both_workers(client: Client, url: str) -> None:
    async def generated() -> float:
        async with httpx.AsyncClient(timeout=60) as plain:
            text = (await plain.get(f"{url}/metrics")).text
        name = 'vllm:generation_tokens_total{model_name="tiny"} '
        return next(float(line[len(name) :]) for line in text.splitlines() if line.startswith(name))

    async def counted() -> float:
        before = await generated()
        await asyncio.gather(*(complete(client, prompt) for prompt in PROMPTS))
        return await generated() - before

    await complete(client)
    # A worker counts a moment after its answer, and one that is slow to tell is told of as it was.
    await eventually(counted, lambda tokens: tokens == 24 * len(PROMPTS))
