"""What `blink-server bench` itself costs: processor time an event, and how late it sends.

A child process speaks just enough HTTP to stream prepared completions, one event a connection and
tick, as a server does whose batch steps together. Against it the generator runs a closed loop of
64 streams (its time per event) and Poisson arrivals of short answers (its lateness). It shares
this machine's cores with that child; processor time is its own.

    python tests/bench/load_generator.py [--ticks-per-second 100] [--output FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

from blink_server.bench.client import COMPLETIONS
from blink_server.bench.exchange import Site
from blink_server.bench.lengths import parse_lengths
from blink_server.bench.measurement import Measurement, Target, measure
from blink_server.bench.summary import Objectives
from blink_server.bench.workload import Workload, closed_loop, independent, open_loop

sys.path.insert(0, str(Path(__file__).parent))
from machine import describe_machine

STREAMS = 64
TOKENS = 500


def _chunk(document: dict[str, Any] | str) -> bytes:
    payload = document if isinstance(document, str) else json.dumps(document)
    data = f"data: {payload}\n\n"
    return f"{len(data):x}\r\n{data}\r\n".encode()


_FRAME = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1764000000}
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: close\r\n\r\n"
)
_TOKEN = _chunk(
    {**_FRAME, "model": "bench", "choices": [{"index": 0, "text": " word", "logprobs": None}]}
)


def _last(tokens: int) -> bytes:
    usage = {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": 8 + tokens}
    return _chunk({**_FRAME, "choices": [], "usage": usage}) + _chunk("[DONE]") + b"0\r\n\r\n"


async def _serve(port: Connection, tick_seconds: float) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        tokens = json.loads(await reader.readexactly(length))["max_tokens"]
        writer.write(_HEAD)
        for _ in range(tokens):
            # All streams wake at the same instants.
            await asyncio.sleep(tick_seconds - time.monotonic() % tick_seconds)
            writer.write(_TOKEN)
        writer.write(_last(tokens))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    port.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _child(port: Connection, tick_seconds: float) -> None:
    uvloop.run(_serve(port, tick_seconds))


def _measured(port: int, workload: Workload) -> Measurement:
    site = Site(f"http://127.0.0.1:{port}")
    target = Target(site, COMPLETIONS, {"model": "bench"}, 600.0, 0.0, 0.0, Objectives())
    prompts = ["x"] * len(workload.sizes)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure(target, workload, prompts))


def _figures(done: Measurement) -> dict[str, float]:
    summary = done.summary
    events = sum(len(outcome.texts) for outcome in done.outcomes)
    assert summary.lateness is not None
    return {
        "events_per_second": events / summary.makespan_seconds,
        "generator_cpu_share": done.generator_cpu,
        "generator_us_per_event": done.generator_cpu * summary.makespan_seconds / events * 1e6,
        "lateness_ms_p50": summary.lateness.p50,
        "lateness_ms_p99": summary.lateness.p99,
        "failed": len(done.outcomes) - sum(outcome.succeeded for outcome in done.outcomes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ticks-per-second", type=float, default=100.0)
    parser.add_argument("--output", type=Path, help="write the results and the machine here")
    options = parser.parse_args()
    machine = describe_machine()
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.Process(
        target=_child, args=(theirs, 1 / options.ticks_per_second), daemon=True
    )
    child.start()
    try:
        port = ours.recv()
        long = independent(parse_lengths("8"), parse_lengths(str(TOKENS)))
        short = independent(parse_lengths("8"), parse_lengths("20"))
        results = {
            f"{STREAMS} streams": _figures(
                _measured(port, closed_loop(STREAMS, STREAMS, long, [1]))
            ),
            "12 arrivals/s": _figures(_measured(port, open_loop("poisson", 12, 10, short, [1]))),
        }
    finally:
        child.kill()
        child.join()
    print(json.dumps(results, indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps({"machine": machine, "results": results}, indent=1))


if __name__ == "__main__":
    main()
