"""A small random Llama served over HTTP by the engine `cuda`, for people's client."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink_persistent.testing.gpu_server import (
    agents,
    continue_all,
    links,
    owners,
    stop_all,
    token_ids,
    write_cuda_version,
)
from blink_persistent.testing.greedy import check_greedy
from blink_server.testing.memory_checkpoint import (
    MemoryCheckpoint,
    random_checkpoint,
    tiny_architecture,
)
from blink_server.testing.server_process import ServerProcess

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")
openai = pytest.importorskip("openai", reason="openai is not installed")

pytestmark = pytest.mark.gpu

Start = Callable[..., Awaitable[ServerProcess]]
STREAMS = 64
TOKENS = 120

# Memory sweeps and a compressor's integer work, as long as it is let.
HOG = """
import bz2, numpy
memory = numpy.ones(1 << 25)
print("going", flush=True)
while True:
    memory *= 1.0000001
    bz2.compress(memory[: 1 << 17].tobytes())
"""


@pytest.fixture(scope="module")
def checkpoint() -> MemoryCheckpoint:
    """A small model whose weights are bfloat16 values, so that a float32 reference has the same."""
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "vocabulary_size": 1000}
    heads = {"heads": 8, "kv_heads": 2, "head_dim": 128, "context_length": 2048}
    found = random_checkpoint(tiny_architecture(**sizes, **heads), seed=9)
    for name, tensor in found.tensors.items():
        found.tensors[name] = torch.from_numpy(tensor).bfloat16().float().numpy()
    return found


@pytest.fixture
def repository(short_path: Path) -> Path:
    path = short_path / "repository"
    path.mkdir()
    return path


@pytest.fixture
async def serve(gpu_present: None, short_path: Path, repository: Path) -> AsyncIterator[Start]:
    servers: list[ServerProcess] = []

    async def start(*arguments: str) -> ServerProcess:
        server = await ServerProcess.start(
            repository, short_path / "run", "--settle-secs=0.05", *arguments
        )
        servers.append(server)
        return server

    yield start
    for server in servers:
        continue_all([*owners(server), *agents(server), *links(server)])
        server.kill_everything()
        await server.exit()
        print(server.output)  # shown where the test fails


def prompts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(0, 1000, int(rng.integers(1, 200))).tolist() for _ in range(count)]


def client_of(url: str) -> Any:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


async def stream(client: Any, prompt: list[int], begun: asyncio.Event | None = None) -> list[int]:
    """The tokens of one streamed answer."""
    text = ""
    asked = {"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    async for chunk in await client.completions.create(**asked, stream=True):
        text += chunk.choices[0].text if chunk.choices else ""
        if begun is not None:
            begun.set()
    return token_ids(text)


@contextmanager
def busy_cores() -> Iterator[None]:
    """Every core of the host is at work."""
    hogs = [
        subprocess.Popen([sys.executable, "-c", HOG], stdout=subprocess.PIPE)
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        for hog in hogs:
            assert hog.stdout is not None
            assert hog.stdout.readline() == b"going\n"
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.communicate()


@pytest.mark.parametrize("scheduler", ["device", "host"])
async def test_answers_are_the_references(
    serve: Start, repository: Path, checkpoint: MemoryCheckpoint, scheduler: str
) -> None:
    write_cuda_version(repository, "tiny", 1, checkpoint)
    server = await serve(f"--scheduler={scheduler}")
    asked = prompts(STREAMS)
    client = client_of(await server.ready())
    answers = await asyncio.gather(*(stream(client, prompt) for prompt in asked))
    plain = checkpoint.dequantized()
    assert [len(answer) for answer in answers] == [TOKENS] * STREAMS
    check_greedy(checkpoint.architecture, plain, zip(asked, answers, strict=True))


async def test_answers_are_right_while_every_core_is_busy_and_every_manager_stands_still(
    serve: Start, repository: Path, checkpoint: MemoryCheckpoint
) -> None:
    write_cuda_version(repository, "tiny", 1, checkpoint)
    server = await serve()
    asked = prompts(STREAMS)
    client = client_of(await server.ready())
    stopped = [server.pid, *owners(server), *links(server)]
    with busy_cores():
        begun = [asyncio.Event() for _ in asked]
        tasks = [
            asyncio.create_task(stream(client, prompt, event))
            for prompt, event in zip(asked, begun, strict=True)
        ]
        await asyncio.gather(*(event.wait() for event in begun))
        stop_all(stopped)
        answers = await asyncio.gather(*tasks)
    continue_all(stopped)
    plain = checkpoint.dequantized()
    check_greedy(checkpoint.architecture, plain, zip(asked[:8], answers[:8], strict=True))
    assert [len(answer) for answer in answers] == [TOKENS] * STREAMS


async def test_a_second_version_takes_over_under_streams_none_of_which_fails(
    serve: Start, repository: Path, checkpoint: MemoryCheckpoint
) -> None:
    write_cuda_version(repository, "tiny", 1, checkpoint)
    server = await serve()
    asked = prompts(STREAMS)
    client = client_of(await server.ready())
    plain = checkpoint.dequantized()
    swapped = asyncio.Event()
    answers: list[tuple[list[int], list[int]]] = []

    async def keep_asking(prompt: list[int]) -> None:
        while not swapped.is_set():
            answers.append((prompt, await stream(client, prompt)))

    tasks = [asyncio.create_task(keep_asking(prompt)) for prompt in asked]
    write_cuda_version(repository, "tiny", 2, checkpoint)
    await server.line("tiny:2 READY")
    await server.line("tiny:1 is given back")
    swapped.set()
    await asyncio.gather(*tasks)
    check_greedy(checkpoint.architecture, plain, answers[:: max(len(answers) // 16, 1)])
    assert all(len(answer) == TOKENS for _, answer in answers)
    parks = [float(each) for each in re.findall(r"parks took (\S+) ms", server.output)]
    print(len(answers), "answers, longest park", max(parks), "ms")
