"""What one HTTP worker can stream, and what it adds to the time to first token.

One gunicorn worker, alone on the first core it may use, over `TickingSession` (a scheduler that
costs nothing); the clients share the other cores. 64 connections stream chat answers at a set rate
while one more connection asks for single tokens, which the scheduler gives at once: the time until
that client has its token is what the worker adds. The worker's own processor time, from /proc,
says what a token costs whatever else the machine does.

    python tests/bench/worker_throughput.py [--rate 20000] [--seconds 5] [--output FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blink_server.backend import ModelVersion, SessionLimits
from blink_server.http.app import create_app
from blink_server.http.model_entry import ModelEntry
from blink_server.http.models import ModelDirectory
from blink_server.http.text_parts import TextParts
from blink_server.repository.harness import State
from blink_server.testing.tiny_tokenizer import CHAT_TEMPLATE, IM_END, byte_level_tokenizer
from blink_server.text.chat_template import ChatTemplate
from blink_server.text.tokenizers import HuggingFaceTokenizer

sys.path.insert(0, str(Path(__file__).parent))
from machine import describe_machine
from stopping import stop_on_sigterm
from ticking_session import TickingSession

STEP, PROFILE = "BLINK_BENCH_STEP_SECONDS", "BLINK_BENCH_PROFILE"
TEXT = "Hello world, the quick brown fox jumps over the lazy dog. naïve 你好 😀 "
CONTEXT = 10**7


class _Profiled:
    """Falcon middleware: profiles the worker from its start to its end."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._profile = cProfile.Profile()

    async def process_startup(self, scope: Any, event: Any) -> None:
        self._profile.enable()

    async def process_shutdown(self, scope: Any, event: Any) -> None:
        self._profile.disable()
        self._profile.dump_stats(self._path)


def make_app() -> Any:
    """The worker's application, for gunicorn."""
    tokenizer = HuggingFaceTokenizer(byte_level_tokenizer())
    limits = SessionLimits(CONTEXT, tokenizer.vocabulary_size, (IM_END,))
    session = TickingSession(
        tokenizer.encode(TEXT, add_special_tokens=False),
        limits,
        step_seconds=float(os.environ[STEP]),
    )
    directory = ModelDirectory()
    text = TextParts(tokenizer, ChatTemplate(CHAT_TEMPLATE))
    version = ModelVersion("bench", 1, Path("unused"), {})
    directory.publish([ModelEntry(version, 1, State.READY, session=session, text=text)])
    app = create_app(directory)
    if path := os.environ.get(PROFILE):
        app.add_middleware(_Profiled(path))
    return app


@dataclass(frozen=True)
class Result:
    """One run. Tokens a second are those that arrived; times are in microseconds."""

    asked_tokens_per_second: float
    connections: int
    tokens_per_second: float
    worker_cpu_us_per_token: float
    worker_cpu_share: float
    first_token_us_p50: float
    first_token_us_p99: float
    first_tokens: int


def _request(body: dict[str, Any]) -> bytes:
    data = json.dumps({"model": "bench", "stream": True, **body}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


MESSAGES = [{"role": "user", "content": "Hi"}]


class _Counter:
    """Events that all streams have received."""

    def __init__(self) -> None:
        self.events = 0


async def _stream(port: int, counter: _Counter) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    writer.write(_request({"messages": MESSAGES, "max_tokens": CONTEXT}))
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        while data := await reader.read(2**16):
            counter.events += data.count(b"data: {")
    finally:
        writer.close()


async def _ask_for_first_tokens(port: int, times: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    request = _request({"messages": MESSAGES, "max_tokens": 1})
    try:
        while True:
            begun = time.perf_counter()
            writer.write(request)
            await reader.readuntil(b'"content": "H')
            times.append((time.perf_counter() - begun) * 1e6)
            await reader.readuntil(b"0\r\n\r\n")
            await asyncio.sleep(0.005)
    finally:
        writer.close()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _measure(port: int, pid: int, rate: float, connections: int, seconds: float) -> Result:
    counter, times = _Counter(), []
    tasks = [asyncio.create_task(_stream(port, counter)) for _ in range(connections)]
    tasks.append(asyncio.create_task(_ask_for_first_tokens(port, times)))
    while counter.events < connections * 10:
        await asyncio.sleep(0.01)
        for task in tasks:
            if task.done():
                task.result()
    times.clear()
    events, cpu, begun = counter.events, _cpu_seconds(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    elapsed = time.perf_counter() - begun
    events, cpu = counter.events - events, _cpu_seconds(pid) - cpu
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    quantiles = statistics.quantiles(times, n=100)
    return Result(
        rate,
        connections,
        events / elapsed,
        cpu / (events + len(times)) * 1e6,
        cpu / elapsed,
        quantiles[49],
        quantiles[98],
        len(times),
    )


def run(rate: float, *, connections: int, seconds: float, profile: str | None = None) -> Result:
    """Measure one rate with a worker of its own."""
    cores = sorted(os.sched_getaffinity(0))
    environment = {
        **os.environ,
        STEP: str(connections / rate),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    if profile is not None:
        environment[PROFILE] = profile
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [
            *(sys.executable, "-m", "gunicorn", "--workers", "1"),
            *("--worker-class", "blink_server.connections.Worker"),
            *("--asgi-loop", "uvloop", "--bind", f"fd://{listener.fileno()}"),
            *("--asgi-lifespan", "on", "--asgi-disconnect-grace-period", "0"),
            *("--graceful-timeout", "1", "--no-control-socket", "--log-level", "warning"),
            "worker_throughput:make_app()",
        ]
        port = listener.getsockname()[1]
        process = subprocess.Popen(
            command, env=environment, pass_fds=[listener.fileno()], start_new_session=True
        )
    try:
        worker = _worker_of(process.pid)
        print(f"{rate:g} tokens a second by worker {worker}", file=sys.stderr, flush=True)
        os.sched_setaffinity(worker, cores[:1])
        os.sched_setaffinity(0, cores[1:] or cores)
        return asyncio.run(_measure(port, worker, rate, connections, seconds))
    finally:
        os.sched_setaffinity(0, cores)
        _end(process)


def _end(gunicorn: subprocess.Popen[bytes]) -> None:
    gunicorn.terminate()
    try:
        gunicorn.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(gunicorn.pid, signal.SIGKILL)
        gunicorn.wait()


def _worker_of(arbiter: int) -> int:
    children = Path(f"/proc/{arbiter}/task/{arbiter}/children")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if pids := children.read_text().split():
            return int(pids[0])
        time.sleep(0.05)
    raise TimeoutError("gunicorn has not started its worker")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, nargs="*", default=[10_000, 20_000, 40_000])
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--profile", help="write the worker's cProfile of the last rate here")
    parser.add_argument("--output", type=Path, help="write the results and the machine here")
    options = parser.parse_args()
    stop_on_sigterm()
    machine, results = describe_machine(), []
    for rate in options.rate:
        result = run(
            rate,
            connections=options.connections,
            seconds=options.seconds,
            profile=options.profile,
        )
        results.append({name: round(value, 3) for name, value in asdict(result).items()})
        print(json.dumps(results[-1]), flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps({"machine": machine, "results": results}, indent=1))


if __name__ == "__main__":
    main()
