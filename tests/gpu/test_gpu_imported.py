"""Models of every family, imported from Hugging Face directories and served together on one GPU."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from blink_persistent.testing.greedy import check_greedy
from blink_server.importers.command import import_command
from blink_server.testing.server_process import ServerProcess
from blink_server.testing.tiny_huggingface import (
    VOCABULARY_SIZE,
    TinyHuggingFace,
    write_tiny_huggingface,
)
from blink_server.testing.tiny_tokenizer import number_tokenizer

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")
openai = pytest.importorskip("openai", reason="openai is not installed")

pytestmark = pytest.mark.gpu

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "phi3")
PROMPTS = [[5], list(range(40, 80)), [7, 300, 2, 11]]
TOKENS = 20


def import_tiny(family: str, directory: Path, repository: Path) -> TinyHuggingFace:
    files = {"tokenizer.json": number_tokenizer(VOCABULARY_SIZE), "tokenizer_config.json": None}
    model = write_tiny_huggingface(directory, family, dtype="BF16", files=files)
    options = ("--engine", "cuda", "--max-rows", "8", "--model-repository", str(repository))
    result = CliRunner().invoke(
        import_command, ["--hf", str(directory), "--name", family, *options]
    )
    assert result.exception is None, result.output
    return model


async def test_imported_models_answer_as_their_references(
    gpu_present: None, short_path: Path
) -> None:
    repository = short_path / "repository"
    models = {family: import_tiny(family, short_path / family, repository) for family in FAMILIES}
    for config in repository.glob("*/1/config.json"):  # six versions share the GPU
        text = config.read_text()
        config.write_text(text.replace('"limits": {', '"limits": {"memory_fraction": 0.12, ', 1))
    server = await ServerProcess.start(repository, short_path / "run", "--settle-secs=0.05")
    try:
        url = await server.ready(seconds=200)
        client = openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120
        )

        async def answer(family: str, prompt: list[int]) -> list[int]:
            asked = {"model": family, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
            found = await client.completions.create(**asked, extra_body={"ignore_eos": True})
            return [int(word) for word in found.choices[0].text.split()]

        asked = [(family, prompt) for family in FAMILIES for prompt in PROMPTS]
        answers = await asyncio.gather(*(answer(*each) for each in asked))
    finally:
        server.kill_everything()
        await server.exit()
        print(server.output)  # shown where the test fails
    assert [len(tokens) for tokens in answers] == [TOKENS] * len(asked)
    for family, model in models.items():
        found = [
            (prompt, tokens)
            for (of, prompt), tokens in zip(asked, answers, strict=True)
            if of == family
        ]
        check_greedy(model.architecture, model.weights, found, same=0.75)
