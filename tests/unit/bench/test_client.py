from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvloop

from blink_server.bench.client import CHAT, COMPLETIONS, AnswerReader, Client
from blink_server.bench.exchange import Failed, Site, ask_json
from blink_server.bench.outcome import Outcome
from blink_server.testing.reserved_port import reserve_port

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
HANG = b"hang"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def text(content: str, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "text": content, "finish_reason": None, **more}]})


USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}})
DONE = b"data: [DONE]\n\n"
WHOLE = [text("a"), text("b", finish_reason="length"), USAGE, DONE]
END = chunk(b"")


class Server:
    """Sends one script to every connection; keeps the requests."""

    def __init__(self) -> None:
        self.script: list[bytes] = []
        self.requests: list[tuple[bytes, Any]] = []
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return writer.close()  # only looked whether anybody listens
        [length] = [x for x in head.split(b"\r\n") if x.lower().startswith(b"content-length")]
        body = await reader.readexactly(int(length.split(b":")[1]))
        self.requests.append((head, json.loads(body or b"null")))
        for part in self.script:
            if part is HANG:
                await reader.read()  # until the client gives up
            writer.write(part)
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    async with await asyncio.start_server(server.answer, "127.0.0.1", 0) as listening:
        server.port = listening.sockets[0].getsockname()[1]
        yield server


def client(port: int, route: str = COMPLETIONS, **options: Any) -> Client:
    fields = options.pop("fields", {"model": "m"})
    site = Site(f"http://127.0.0.1:{port}/base/", "key")
    clock = asyncio.get_running_loop().time
    return Client(site, route, fields, **{"timeout_seconds": 30.0, "clock": clock, **options})


async def sent(to: Client, prompt: str | list[int] = "Hi") -> Outcome:
    outcome = Outcome(0, asyncio.get_running_loop().time(), 7, 5)
    await to.send(outcome, to.request(prompt, 5))
    return outcome


async def test_a_whole_answer(server: Server) -> None:
    server.script = [CHUNKED, *map(chunk, WHOLE), END]
    outcome = await sent(client(server.port))
    assert (outcome.error, outcome.detail) == ("", "")
    assert (outcome.prompt_tokens, outcome.completion_tokens) == (7, 5)
    assert (outcome.finish_reason, len(outcome.texts)) == ("length", 2)
    assert outcome.scheduled <= outcome.sent <= outcome.texts[0] <= outcome.ended


async def test_an_answer_that_the_connections_end_ends(server: Server) -> None:
    server.script = [OK + b"\r\n", *WHOLE]
    assert (await sent(client(server.port))).error == ""


async def test_what_is_sent(server: Server) -> None:
    server.script = [CHUNKED, *map(chunk, WHOLE), END]
    await sent(client(server.port, fields={"model": "m", "ignore_eos": True}), [1, 2])
    await sent(client(server.port, CHAT, fields={"model": "m", "min_tokens": 1}))
    (head, completion), (_, chat) = server.requests
    assert head.startswith(b"POST /base/v1/completions HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer key\r\n" in head
    stream = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 5}
    assert completion == {"model": "m", "prompt": [1, 2], "ignore_eos": True, **stream}
    messages = [{"role": "user", "content": "Hi"}]
    assert chat == {"model": "m", "messages": messages, "min_tokens": 5, **stream}


REFUSED = b"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\nqueue full"[:-1]


@pytest.mark.parametrize(
    ("script", "kind", "detail"),
    [
        ([REFUSED], "http_503", "queue ful"),
        ([], "broken", "before the answer"),
        ([CHUNKED, chunk(text("a"))], "broken", "before the answer"),
        ([CHUNKED, chunk(text("a")), END], "broken", "[DONE]"),
        ([CHUNKED, chunk(text("a")), chunk(event({"error": "x"})), END], "stream_error", "x"),
        ([CHUNKED, chunk(b"data: {]\n\n"), END], "protocol", "no chunk"),
        ([CHUNKED, chunk(b"data: 3\n\n"), END], "protocol", "no chunk"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "protocol", ""),
        ([CHUNKED, chunk(text("")), chunk(DONE), END], "empty", "no text"),
    ],
)
async def test_errors_have_kinds(
    server: Server, script: list[bytes], kind: str, detail: str
) -> None:
    server.script = script
    outcome = await sent(client(server.port))
    assert outcome.error == kind
    assert detail in outcome.detail
    assert outcome.ended >= outcome.sent


async def test_a_server_that_does_not_answer_in_time(server: Server) -> None:
    server.script = [CHUNKED, chunk(text("a")), HANG]
    assert (await sent(client(server.port, timeout_seconds=0.05))).error == "timeout"


async def test_no_server() -> None:
    with reserve_port() as reserved:
        assert (await sent(client(reserved.getsockname()[1]))).error == "connect"


def test_the_same_on_uvloop() -> None:
    async def main() -> Outcome:
        server = Server()
        server.script = [CHUNKED, *map(chunk, WHOLE), END]
        async with await asyncio.start_server(server.answer, "127.0.0.1", 0) as listening:
            return await sent(client(listening.sockets[0].getsockname()[1]))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(main())
    assert (outcome.error, outcome.completion_tokens) == ("", 5)


def test_arrivals_are_those_of_events_with_text() -> None:
    now = 0.0
    outcome = Outcome(0, 1.0, 7, 5)
    reader = AnswerReader(outcome, lambda: now)
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    said = event({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]})
    thought = event({"choices": [{"delta": {"reasoning_content": "x"}}]})
    for now, data in [  # noqa: B007 (the reader's clock)
        (3.0, role),
        (4.0, thought[:9]),
        (5.0, thought[9:] + said),
        (9.0, text("")),
        (11.0, said + USAGE + DONE),
    ]:
        reader.read(data)
    reader.finish()
    assert outcome.texts.tolist() == [5.0, 5.0, 11.0]
    assert (outcome.time_to_first_token, outcome.end_to_end) == (4.0, 10.0)
    assert outcome.inter_token_latencies == [0.0, 6.0]
    assert outcome.time_per_output_token == pytest.approx(6 / 4)


def test_without_usage_an_event_is_a_token() -> None:
    outcome = Outcome(0, 0.0, 7, 5)
    reader = AnswerReader(outcome, lambda: 1.0)
    reader.read(text("a") + text("b") + text("c") + DONE)
    reader.finish()
    assert (outcome.prompt_tokens, outcome.completion_tokens) == (0, 3)


async def test_whole_answers(server: Server) -> None:
    site = Site(f"http://127.0.0.1:{server.port}")
    server.script = [OK + b"Content-Length: 12\r\n\r\n", b'{"count": 3}']
    assert await ask_json(site, "POST", "/tokenize", {"prompt": "x"}) == {"count": 3}
    server.script = [OK + b"Content-Length: 2\r\n\r\n", b"no"]
    with pytest.raises(Failed, match="not JSON"):
        await ask_json(site, "GET", "/v1/models")


async def test_a_host_is_looked_up_once(server: Server) -> None:
    located = await Site(f"http://localhost:{server.port}").located()
    assert located.address == "127.0.0.1"  # also where ::1 comes first: nobody listens there
    server.script = [OK + b"Content-Length: 12\r\n\r\n", b'{"count": 3}']
    assert await ask_json(located, "GET", "/") == {"count": 3}
    assert server.requests[0][0].split(b"\r\n")[1] == f"Host: localhost:{server.port}".encode()


async def test_a_host_that_is_not_there() -> None:
    with reserve_port() as reserved:
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        with pytest.raises(Failed, match=f"{url}: "):
            await Site(url).located()
