"""A request's answer does not depend on the company it is served in, bit by bit."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from blink_persistent.engines import ProvisionLimits
from blink_persistent.engines.onnx_cpu.engine import OnnxCpuEngine
from blink_persistent.frontend.session import RingSession
from blink_persistent.frontend.shm import connect
from blink_persistent.graph_grid import GraphGrid
from blink_persistent.runner import Runner
from blink_persistent.samplers.default import DefaultSampler
from blink_server.backend import (
    Endpoint,
    GenerateRequest,
    ModelVersion,
    SamplingParams,
    TokenLogprob,
)
from blink_server.config import load_model_config
from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture

Answer = tuple[list[int], list[TokenLogprob]]


def _silent(_stage: str, _fraction: float) -> None:
    """Nobody watches the progress."""


@pytest.fixture
async def session(tmp_path: Path) -> AsyncIterator[RingSession]:
    """A worker's session with a whole runner, on a tiny model with int8 activations."""
    engine, limits = OnnxCpuEngine(), {"max_rows": 8, "context_length": 64}
    checkpoint = random_checkpoint(tiny_architecture(), bits=4)
    built = engine.build(checkpoint, tmp_path, limits=limits, options={}, progress=_silent)
    config = {"backend": "blink_persistent", "eos_token_ids": [], **built.config}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "graph_grid.json").write_text(json.dumps(built.graph_grid))
    (tmp_path / "tokenizer.json").write_text(checkpoint.tokenizer_json)
    version = ModelVersion("tiny", 1, tmp_path, load_model_config(tmp_path))
    grid = GraphGrid.from_json(built.graph_grid)
    provisioned = engine.provision(
        version, grid, ProvisionLimits(threads=2, sampler=DefaultSampler()), progress=_silent
    )
    runner = Runner(version, provisioned, epoch=1)
    runner.serve(tmp_path / "ring.sock")
    opened = await connect(version, Endpoint("shm", {"socket": str(tmp_path / "ring.sock")}))
    yield opened
    await opened.close()
    runner.close()


def sixteen_requests(seed: int, vocabulary: int) -> list[GenerateRequest]:
    """Prompts of 1 to 40 tokens, greedy and drawn, each with all log-probabilities."""
    rng = random.Random(seed)
    return [
        GenerateRequest(
            prompt_ids=[rng.randrange(vocabulary) for _ in range(rng.randint(1, 40))],
            max_tokens=rng.randint(1, 20),
            sampling=SamplingParams(
                temperature=rng.choice([0.0, 1.0]),
                top_p=rng.choice([1.0, 0.8]),
                seed=number,
                logprobs=20,
            ),
        )
        for number in range(16)
    ]


async def answer(session: RingSession, request: GenerateRequest) -> Answer:
    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []
    async for event in await session.submit(request):
        tokens += event.token_ids
        logprobs += event.logprobs or []
    return tokens, logprobs


async def answers_together(
    session: RingSession, requests: Sequence[GenerateRequest], seed: int
) -> list[Answer]:
    """Each request joins once those before it have given a random number of their tokens."""
    rng = random.Random(seed)
    given, news = 0, asyncio.Condition()
    before = [sum(r.max_tokens for r in requests[:i]) for i in range(len(requests))]
    joins = [rng.randint(0, tokens) for tokens in before]

    async def one(request: GenerateRequest, joins_at: int) -> Answer:
        nonlocal given
        async with news:
            await news.wait_for(lambda: given >= joins_at)
            stream = await session.submit(request)
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        async for event in stream:
            tokens += event.token_ids
            logprobs += event.logprobs or []
            async with news:
                given += len(event.token_ids)
                news.notify_all()
        return tokens, logprobs

    return await asyncio.gather(*map(one, requests, joins))


@pytest.mark.parametrize("seed", [1, 2])
async def test_sixteen_requests_alone_and_together(session: RingSession, seed: int) -> None:
    requests = sixteen_requests(seed, session.limits.vocabulary_size)
    alone = [await answer(session, request) for request in requests]
    together = await answers_together(session, requests, seed)
    for request, own, shared in zip(requests, alone, together, strict=True):
        assert len(own[0]) == request.max_tokens
        assert shared == own  # tokens, and log-probabilities to the last bit
