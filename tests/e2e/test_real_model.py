"""SmolLM2-135M-Instruct through every part, against the float32 reference."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from blink_server.importers.pull import pull
from blink_server.testing.server_process import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

REFERENCE = Path(__file__).parents[1] / "parity" / "reference" / "smollm2_greedy.json"
SURE_MARGIN = 0.5  # no token may flip where the reference's logits are further apart
EVERY = 3  # of the reference's tokens, which is enough to see all of it served
NAME = "smollm2-135m-instruct"
QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Name three primary colours.",
    "How many legs has a spider?",
    "Translate 'good morning' into French.",
    "What is water made of?",
    "Who wrote Romeo and Juliet?",
    "Why do leaves fall in autumn?",
    "What is 7 times 8?",
    "Describe a cat in one sentence.",
]


@dataclass(frozen=True)
class Served:
    client: openai.AsyncOpenAI
    version: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[Served]:
    with tempfile.TemporaryDirectory(prefix="blink-") as place:
        repository, runtime = Path(place) / "repository", Path(place) / "run"
        command = [sys.executable, "-m", "blink_server", "import", f"--gguf={pull(NAME)}"]
        options = [f"--name={NAME}", f"--model-repository={repository}"]
        await asyncio.to_thread(subprocess.run, [*command, *options], check=True)
        server = await ServerProcess.start(repository, runtime)
        try:
            base = f"{await server.ready()}/v1"
            async with openai.AsyncOpenAI(base_url=base, api_key="none", timeout=300) as client:
                yield Served(client, repository / NAME / "1")
            assert await server.stop() == 0
        finally:
            server.kill_everything()
            print(server.output)  # shown where a test fails


async def ask(client: openai.AsyncOpenAI, question: str, **fields: Any) -> str:
    create: Any = client.chat.completions.create
    options = {"max_tokens": 48, "temperature": 0, **fields}
    answer = await create(
        model=NAME, messages=[{"role": "user", "content": question}], stream=True, **options
    )
    return "".join(
        [choice.delta.content or "" async for chunk in answer for choice in chunk.choices]
    )


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(REFERENCE.read_text())["cases"]
    return found


async def test_prompts_become_the_tokens_of_the_reference(
    served: Served, cases: list[dict[str, Any]]
) -> None:
    for case in cases:
        if case["chat"]:
            answer: Any = await served.client.chat.completions.create(
                model=NAME, messages=[{"role": "user", "content": case["prompt"]}], max_tokens=1
            )
        else:
            answer = await served.client.completions.create(
                model=NAME, prompt=case["prompt"], max_tokens=1
            )
        assert answer.usage.prompt_tokens == len(case["prompt_ids"]), case["prompt"]


async def test_the_next_token_is_the_reference_s_wherever_it_is_sure(
    served: Served, cases: list[dict[str, Any]]
) -> None:
    tokenizer = Tokenizer.from_file(str(served.version / "tokenizer.json"))
    asked = 0
    for case in cases:
        for place in range(0, len(case["tokens"]), EVERY):
            if case["margin"][place] <= SURE_MARGIN:
                continue
            answer = await served.client.completions.create(
                model=NAME,
                prompt=case["prompt_ids"] + case["tokens"][:place],
                max_tokens=1,
                temperature=0,
            )
            expected = tokenizer.decode([case["tokens"][place]])
            assert answer.choices[0].text == expected, (case["prompt"], place)
            asked += 1
    assert asked > 5 * len(cases)


async def test_answers_do_not_depend_on_what_else_is_served(served: Served) -> None:
    alone = [await ask(served.client, question) for question in QUESTIONS]
    assert all(alone)
    together = await asyncio.gather(*(ask(served.client, question) for question in QUESTIONS))
    assert list(together) == alone
