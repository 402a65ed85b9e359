"""Whole sessions against a server of this process, which counts words as tokens."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext
from typing import Any

import click
import pytest

from blink_server.bench.options import bench_options
from blink_server.bench.session import ALONE, BESIDE, Condition, Session
from blink_server.bench.settings import BenchSettings
from blink_server.errors import BlinkError

ALONE_ONLY = [Condition(ALONE, lambda: nullcontext(None))]
BOTH = [*ALONE_ONLY, Condition(BESIDE, lambda: nullcontext(None))]


def tokens(text: str) -> int:
    return 2 + sum(text.count(end) for end in " .!?,") + len(text.split()[-1]) // 9


class WordServer:
    """/v1/models, /tokenize and streamed /v1/completions, in a thread of its own."""

    def __init__(self) -> None:
        self.models = ["words"]
        self.refused: set[str] = set()
        self.asked: list[dict[str, Any]] = []
        self.port = 0
        self._up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._run()])

    def start(self) -> None:
        self._thread.start()
        assert self._up.wait(30)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        self._stopped = asyncio.Event()
        async with await asyncio.start_server(self._answer, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            self._up.set()
            await self._stopped.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except (asyncio.IncompleteReadError, ConnectionError):
            return writer.close()  # only looked whether anybody listens
        path, length = head.split()[1], int(head.lower().split("content-length:")[1].split()[0])
        body = json.loads(await reader.readexactly(length) or "null")
        status = "404 Not Found" if path in self.refused else "200 OK"
        writer.write(f"HTTP/1.1 {status}\r\n\r\n".encode() + self._content(path, body))
        writer.close()

    def _content(self, path: str, body: Any) -> bytes:
        if path == "/v1/models":
            return json.dumps({"data": [{"id": name} for name in self.models]}).encode()
        if path == "/tokenize":
            return json.dumps({"count": tokens(body["prompt"])}).encode()
        self.asked.append(body)
        usage = {
            "prompt_tokens": tokens(body["prompt"]),
            "completion_tokens": body["max_tokens"],
        }
        events = [{"choices": [{"text": "x"}]}] * body["max_tokens"] + [{"usage": usage}]
        lines = [*map(json.dumps, events), "[DONE]"]
        return "".join(f"data: {line}\n\n" for line in lines).encode()


@pytest.fixture
def server() -> Iterator[WordServer]:
    server = WordServer()
    server.start()
    yield server
    server.stop()


def session(server: WordServer, *arguments: str) -> Session:
    command = click.command()(bench_options(lambda **options: options))
    short = ["--warm-up-secs=0", "--cool-down-secs=0", "--duration-secs=0.2"]
    sizes = ["--input-tokens=uniform:20:0.3", "--output-tokens=uniform:4:0.5"]
    given = [f"--url=http://127.0.0.1:{server.port}", *short, *sizes, *arguments]
    with command.make_context("bench", given) as context:
        return Session(BenchSettings(**context.params), None)


def test_all_loads_under_all_conditions_in_turns(server: WordServer) -> None:
    runs = list(session(server, "--rate=20,40", "--repeats=2").run(BOTH))
    order = [(run.round, run.load.name, run.condition) for run in runs]
    assert order == [
        *((1, "20/s", ALONE), (1, "20/s", BESIDE), (1, "40/s", ALONE), (1, "40/s", BESIDE)),
        *((2, "20/s", BESIDE), (2, "20/s", ALONE), (2, "40/s", BESIDE), (2, "40/s", ALONE)),
    ]
    for run in runs:
        summary = run.measurement.summary
        assert summary.succeeded == summary.requests > 0
        assert summary.wrong_lengths == 0
    prompts = [body["prompt"] for body in server.asked]
    assert len(set(prompts)) > 0.9 * len(prompts)  # the same seed, but nothing that was cached


def test_rounds_have_the_same_arrivals_and_lengths_in_both_conditions(server: WordServer) -> None:
    alone, beside = list(session(server, "--rate=40").run(BOTH))
    for of in ("asked_input", "asked_output"):
        ours, theirs = (
            [getattr(one, of) for one in run.measurement.outcomes] for run in (alone, beside)
        )
        assert ours == theirs


def test_a_server_that_counts_no_tokens_is_told_what_helps(server: WordServer) -> None:
    server.refused.add("/tokenize")
    with pytest.raises(BlinkError, match=r"does not count tokens .*--tokenizer or --prompt-ids"):
        list(session(server, "--rate=20").run(ALONE_ONLY))


def test_several_models_need_a_choice(server: WordServer) -> None:
    server.models.append("other")
    with pytest.raises(BlinkError, match="give --model; the server has words, other"):
        list(session(server, "--rate=20").run(ALONE_ONLY))


def test_a_refusal_is_told_before_anything_is_measured(server: WordServer) -> None:
    server.refused.add("/v1/completions")
    with pytest.raises(BlinkError, match="/v1/completions: http_404"):
        list(session(server, "--rate=20").run(ALONE_ONLY))
    assert len(server.asked) == 1


def test_runs_come_as_they_end(server: WordServer) -> None:
    with closing(session(server, "--rate=20,40").run(ALONE_ONLY)) as runs:
        assert next(runs).load.name == "20/s"
        asked = len(server.asked)
        assert next(runs).load.name == "40/s"
        assert len(server.asked) > asked  # the second had not begun before
