"""What viewers of the console take from streams: `python tests/bench/console_viewers.py`.

One server with one HTTP worker and a scripted version of 4,096 slots and a fixed step time; STREAMS
clients ask for answers of TOKENS tokens without a pause. In every round the tokens of finished
answers are counted for some seconds with and for as many without 100 viewers, who read the feed in
a process of their own; which comes first alternates. Reported are the shares that each pair's
tokens a second change by, and the worker's processor time a second with and without.

    python tests/bench/console_viewers.py [--rounds 6] [--seconds 10] [--step-us 5000] [--keep]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from machine import describe_machine
from measures import Measure, keep, report
from rich.console import Console
from served import served
from stopping import stop_on_sigterm

from blink_persistent.testing.scripted_version import write_scripted_version
from blink_server.testing.stream_client import EventStream

STREAMS, TOKENS, VIEWERS = 32, 100, 100
MOST_CHANGE = 0.02


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens a second of finished answers, and the worker's processor seconds a second."""

    tokens: float
    cpu: float


class Streams:
    """Clients that ask without a pause; `answers` have been finished."""

    def __init__(self, url: str) -> None:
        self.answers = 0
        self._tasks = [asyncio.create_task(self._ask(url)) for _ in range(STREAMS)]

    async def _ask(self, url: str) -> None:
        body = {"model": "scripted", "prompt": "Hello", "max_tokens": TOKENS, "stream": True}
        while True:
            events = await EventStream.open(url, "/v1/completions", body)
            async for _ in events:
                pass
            events.close()
            self.answers += 1

    async def measure(self, worker: int, seconds: float) -> Window:
        """Count for some seconds. Raises what a client has failed with."""
        answers, cpu, begun = self.answers, cpu_seconds(worker), time.perf_counter()
        await asyncio.wait(self._tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in self._tasks:
            if task.done():
                task.result()
        elapsed = time.perf_counter() - begun
        tokens = (self.answers - answers) * TOKENS
        return Window(tokens / elapsed, (cpu_seconds(worker) - cpu) / elapsed)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def watch(url: str) -> None:
    """The viewers' process: says "watching" once all have the state, and reads on."""
    host = urlsplit(url)
    connections = [await asyncio.open_connection(host.hostname, host.port) for _ in range(VIEWERS)]
    for _, writer in connections:
        writer.write(f"GET /console/events HTTP/1.1\r\nHost: {host.netloc}\r\n\r\n".encode())
    for reader, _ in connections:
        await reader.readuntil(b"event: state")
    print("watching", flush=True)

    async def read_on(reader: asyncio.StreamReader) -> None:
        while await reader.read(2**16):
            pass
        raise RuntimeError("the feed has ended")

    await asyncio.gather(*(read_on(reader) for reader, _ in connections))


@contextlib.asynccontextmanager
async def viewers(url: str) -> AsyncIterator[None]:
    """While inside, they watch."""
    command = [sys.executable, __file__, "--watch", url]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        if await process.stdout.readline() != b"watching\n":
            raise RuntimeError("the viewers could not begin")
        yield
        if process.returncode is not None:
            raise RuntimeError("the viewers have ended early")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def paired(rounds: int, seconds: float, step_us: int) -> list[tuple[Window, Window]]:
    """(without, with viewers) of each round."""
    found = []
    with tempfile.TemporaryDirectory(prefix="blink-") as directory:
        limits = {"slots": 4096, "max_rows": STREAMS, "max_queue": 4096}
        write_scripted_version(Path(directory), limits=limits, step_microseconds=step_us)
        async with served(Path(directory), "--workers=1") as (server, url, _):
            worker = server.workers()[0].pid
            streams = Streams(url)
            try:
                await streams.measure(worker, min(seconds, 2.0))  # to warm up
                for number in range(rounds):
                    windows = {}
                    for watched in (False, True) if number % 2 else (True, False):
                        async with viewers(url) if watched else contextlib.nullcontext():
                            windows[watched] = await streams.measure(worker, seconds)
                    found.append((windows[False], windows[True]))
            finally:
                await streams.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--step-us", type=int, default=5000)
    parser.add_argument("--keep", action="store_true", help="write the figures to results/")
    parser.add_argument("--watch", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch is not None:
        asyncio.run(watch(options.watch))
        return
    stop_on_sigterm()
    pairs = asyncio.run(paired(options.rounds, options.seconds, options.step_us))
    loss = tuple(1 - watched.tokens / alone.tokens for alone, watched in pairs)
    measures = [
        Measure("tokens a second without viewers", "/s", tuple(one.tokens for one, _ in pairs)),
        Measure(f"with {VIEWERS} viewers", "/s", tuple(one.tokens for _, one in pairs)),
        Measure("share that is lost", "", loss, at_most=MOST_CHANGE),
        Measure("worker's CPU without viewers", "s/s", tuple(one.cpu for one, _ in pairs)),
        Measure(f"worker's CPU with {VIEWERS} viewers", "s/s", tuple(one.cpu for _, one in pairs)),
    ]
    Console().print(report(measures))
    if options.keep:
        print(keep("console-viewers", __doc__, describe_machine(), measures))


if __name__ == "__main__":
    main()
