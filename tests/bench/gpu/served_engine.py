"""The engine `cuda` behind a whole server: first tokens over HTTP, busy cores, a second version.

    python tests/bench/gpu/served_engine.py OUTPUT_DIRECTORY --model llama-3-8b

Method: a server of one worker on the machine of the GPU, random weights at the model's full shape,
39 graphs. "first_token": one request at a time, 1,024 tokens of prompt that no other had, streamed;
from the client's first byte to the first text, on the client's clock. "step": 64 streams that all
decode; the engine's steps between two reads of the ring's header, by the GPU's own clock (the
header's heartbeats), so that no process of the host has a part in the time; in turns with the
host's cores idle and with a process on each that sweeps 256 MiB of memory and compresses with
bzip2. "beside": 64 streams at any time, while another model is loaded, serves and is unloaded on
the same GPU; all must end as they should. How often and how long the first one stood still is what
the GPU's process logs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.ring import LAYOUT_HASH, Ring
from blink_persistent.testing.gpu_server import write_gpu_version
from blink_server.testing.server_process import ServerProcess
from blink_server.testing.stream_client import StreamedAnswer, stream_answer

COMPLETIONS = "/v1/completions"
LIMITS = {
    "context_length": 2048,
    "max_rows": 64,
    "max_prefill_tokens": 2048,
    "slots": 1024,
    "memory_fraction": 0.5,
}
ROWS = 64
PROMPT = 1024
STEADY_STEPS = 200
LOAD_SECONDS = 200.0  # where kernels are compiled first
HOG = """
import bz2, numpy
memory = numpy.ones(1 << 25)
print("going", flush=True)
while True:
    memory *= 1.0000001
    bz2.compress(memory[: 1 << 17].tobytes())
"""


class Asker:
    """Asks one model for completions of prompts that are all different."""

    def __init__(self, url: str, model: str, vocabulary: int) -> None:
        self._url, self._model, self._vocabulary = url, model, vocabulary
        self._random = np.random.default_rng(1)

    async def ask(self, prompt: int, tokens: int) -> StreamedAnswer:
        ids = self._random.integers(0, self._vocabulary, prompt).tolist()
        body = {"model": self._model, "prompt": ids, "max_tokens": tokens, "temperature": 0}
        answer = await stream_answer(self._url, COMPLETIONS, body)
        assert answer.usage["completion_tokens"] == tokens
        return answer

    def streams(self, tokens: int) -> list[asyncio.Task[StreamedAnswer]]:
        return [asyncio.create_task(self.ask(16, tokens)) for _ in range(ROWS)]


def attached_ring(socket_path: Path) -> tuple[Ring, socket.socket]:
    """The ring's mirror, as its agent keeps it, with the lease of a range of it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(socket_path))
    attach = {"type": "attach", "layout_hash": f"{LAYOUT_HASH:016x}", "pid": os.getpid()}
    connection.sendall(json.dumps(attach).encode() + b"\n")
    line, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 8)
    memory = mmap.mmap(descriptors[0], json.loads(line)["bytes"])
    for descriptor in descriptors:
        os.close(descriptor)
    return Ring(memory), connection


async def step_microseconds(ring: Ring) -> float:
    """A step's time while all rows decode, by the GPU's clock."""
    while ring.field("rows_used") < ROWS:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    launches = ring.field("prefill_launches")
    first, begun = ring.field("steps"), ring.field("heartbeat_ns")
    while ring.field("steps") < first + STEADY_STEPS:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    last, ended = ring.field("steps"), ring.field("heartbeat_ns")
    assert ring.field("rows_used") == ROWS, "streams ended within the measurement"
    assert ring.field("prefill_launches") == launches, "prompts were read meanwhile"
    return (ended - begun) / (last - first) / 1e3


@contextmanager
def busy_cores() -> Iterator[None]:
    """A hog on each of the host's cores."""
    hogs = [
        subprocess.Popen([sys.executable, "-c", HOG], stdout=subprocess.PIPE)
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        for hog in hogs:
            assert hog.stdout is not None
            hog.stdout.readline()
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.communicate()


async def measure_first_tokens(asker: Asker, count: int) -> list[float]:
    """Milliseconds each."""
    await asker.ask(PROMPT, 4)
    return [1e3 * (await asker.ask(PROMPT, 4)).time_to_first_token for _ in range(count)]


async def measure_steps(asker: Asker, ring: Ring, turns: int, tokens: int) -> dict[str, Any]:
    """Microseconds of a step: idle cores and busy ones, in turns."""
    found: dict[str, list[float]] = {"idle": [], "busy": []}
    for _ in range(turns):
        for name in found:
            with busy_cores() if name == "busy" else nullcontext():
                streams = asker.streams(tokens)
                found[name].append(await step_microseconds(ring))
                await asyncio.gather(*streams)
    return found


async def measure_beside(
    server: ServerProcess, asker: Asker, repository: Path, model: str, tokens: int
) -> dict[str, Any]:
    """Load and unload another model under streams, each followed by another until it is over."""
    over = asyncio.Event()

    async def keep_asking() -> list[StreamedAnswer]:
        answers = []
        while not over.is_set():
            answers.append(await asker.ask(16, tokens))
        return answers

    tasks = [asyncio.create_task(keep_asking()) for _ in range(ROWS)]
    began, lines = time.monotonic(), len(server.lines)
    write_version(repository, "beside", model, memory_fraction=0.1)
    await server.line("beside:1 READY", after=lines, seconds=LOAD_SECONDS)
    ready = time.monotonic() - began
    shutil.rmtree(repository / "beside")
    await server.line("beside:1 is given back", after=lines)
    over.set()
    answers = [answer for each in await asyncio.gather(*tasks) for answer in each]
    gaps = [
        later - earlier
        for answer in answers
        for (earlier, _), (later, _) in zip(answer.pieces, answer.pieces[1:], strict=False)
    ]
    return {
        "ready_s": ready,
        "streams": len(answers),
        "longest_gap_of_a_stream_ms": max(gaps) / 1e6,
        "log": [line for line in server.lines[lines:] if "beside" in line or "park" in line],
    }


def write_version(repository: Path, name: str, model: str, *, memory_fraction: float) -> None:
    write_gpu_version(
        repository,
        name,
        engine={"name": "cuda", "weights": "random", "model": model},
        vocabulary=ARCHITECTURES[model].vocabulary_size,
        limits={**LIMITS, "memory_fraction": memory_fraction},
    )


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything asked for, on one server."""
    with tempfile.TemporaryDirectory(prefix="blink-", ignore_cleanup_errors=True) as place:
        repository, runtime = Path(place, "repository"), Path(place, "run")
        write_version(repository, "model", options.model, memory_fraction=0.5)
        server = await ServerProcess.start(
            repository, runtime, "--settle-secs=0.2", f"--scheduler={options.scheduler}"
        )
        try:
            began = time.monotonic()
            url = await server.ready(seconds=LOAD_SECONDS)
            found: dict[str, Any] = {"ready_s": time.monotonic() - began}
            asker = Asker(url, "model", ARCHITECTURES[options.model].vocabulary_size)
            found["first_token_ms"] = await measure_first_tokens(asker, options.first_tokens)
            keep(options, found)
            ring, connection = attached_ring(runtime / "runner-1" / "ring.sock")
            found["step_us"] = await measure_steps(asker, ring, options.turns, options.tokens)
            keep(options, found)
            connection.close()
            if options.beside:
                found["beside"] = await measure_beside(
                    server, asker, repository, options.beside, options.beside_tokens
                )
            keep(options, found)
            assert await server.stop() == 0
        finally:
            server.kill_everything()
            print("\n".join(server.lines[-80:]), file=sys.stderr)
    return found


def keep(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Write what there is so far."""
    name = f"served-{options.model}-{options.scheduler}.json"
    (options.output / name).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def summary(found: dict[str, Any]) -> dict[str, Any]:
    first, steps = found["first_token_ms"], found["step_us"]
    idle, busy = (statistics.median(steps[name]) for name in ("idle", "busy"))
    return {
        "first_token_ms": {
            "median": statistics.median(first),
            "p90": statistics.quantiles(first, n=10)[-1],
            "max": max(first),
        },
        "step_us": {"idle": idle, "busy": busy, "busy_over_idle": busy / idle},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", default="llama-3-8b", choices=ARCHITECTURES)
    parser.add_argument("--scheduler", default="device", choices=("device", "host"))
    parser.add_argument("--first-tokens", type=int, default=20)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=600, help="of each stream of a measurement")
    parser.add_argument("--beside", choices=ARCHITECTURES, help="model to load and unload")
    parser.add_argument("--beside-tokens", type=int, default=400)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    found = asyncio.run(measure(options))
    found["summary"] = summary(found)
    keep(options, found)
    print(json.dumps({"ready_s": found["ready_s"], **found["summary"]}, indent=1))
    if "beside" in found:
        print(json.dumps({k: v for k, v in found["beside"].items() if k != "log"}, indent=1))


if __name__ == "__main__":
    main()
