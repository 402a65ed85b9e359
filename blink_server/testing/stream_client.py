"""A cheap client for one streamed answer: a raw socket, and a time stamp for every chunk.

For measurements that share their cores with the server, and for tests that must see the frames
themselves. A person's client is the `openai` package.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from blink_server.errors import BlinkError

_END = "[DONE]"


class RequestFailed(BlinkError):
    """The server answered with an error, as a status or in the stream, or broke the stream off."""


@dataclass(slots=True)
class StreamedAnswer:
    """What came of one choice. Times are nanoseconds of CLOCK_MONOTONIC, 0 = never.

    `pieces`: (arrival, text) of every chunk with text. `usage` as the server gave it.
    """

    asked_ns: int
    pieces: list[tuple[int, str]] = field(default_factory=list)
    finish_reason: str = ""
    usage: Mapping[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces)

    @property
    def first_ns(self) -> int:
        return self.pieces[0][0] if self.pieces else 0

    @property
    def last_ns(self) -> int:
        return self.pieces[-1][0] if self.pieces else 0

    @property
    def time_to_first_token(self) -> float:
        """Seconds from the request to the first text."""
        return (self.first_ns - self.asked_ns) / 1e9

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first one; 0 where there are not two chunks to measure by."""
        seconds = (self.last_ns - self.first_ns) / 1e9
        return (self.usage["completion_tokens"] - 1) / seconds if seconds > 0 else 0.0


async def stream_answer(
    url: str,
    path: str,
    body: Mapping[str, Any],
    *,
    on_text: Callable[[str], None] = lambda _: None,
) -> StreamedAnswer:
    """Ask for one choice as a stream and read it to its end; `body` is the request without stream.

    `on_text` is called with each text as it arrives. Raises RequestFailed, OSError.
    """
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    answer = StreamedAnswer(time.monotonic_ns())
    events = await EventStream.open(url, path, asked)
    try:
        async for payload in events:
            arrived = time.monotonic_ns()
            _take(answer, json.loads(payload), arrived, on_text)
    finally:
        events.close()
    return answer


def _take(
    answer: StreamedAnswer, chunk: Mapping[str, Any], arrived: int, on_text: Callable[[str], None]
) -> None:
    if "error" in chunk:
        raise RequestFailed(chunk["error"]["message"])
    answer.usage = chunk.get("usage") or answer.usage
    for choice in chunk["choices"]:
        if text := text_of(choice):
            answer.pieces.append((arrived, text))
            on_text(text)
        answer.finish_reason = choice["finish_reason"] or answer.finish_reason


def text_of(choice: Mapping[str, Any]) -> str:
    """The text of one choice of a chunk, be it of a chat or of a completion."""
    return (choice["delta"].get("content") if "delta" in choice else choice["text"]) or ""


class EventStream:
    """One streamed response; iteration gives each event's payload, without the end mark."""

    def __init__(self, writer: asyncio.StreamWriter, parts: AsyncIterator[bytes]) -> None:
        self._writer = writer
        self._parts = parts

    @classmethod
    async def open(cls, url: str, path: str, body: Mapping[str, Any]) -> EventStream:
        """Ask, and wait for the head of the answer. Raises RequestFailed unless it is 200."""
        host = urlsplit(url)
        reader, writer = await asyncio.open_connection(host.hostname, host.port)
        try:
            content = json.dumps(body).encode()
            head = (
                f"POST {path} HTTP/1.1\r\nHost: {host.netloc}\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
            )
            writer.write(head.encode() + content)
            status, chunked = await _read_head(reader)
            parts = _chunks(reader) if chunked else _until_end(reader)
            if status != 200:
                text = b"".join([part async for part in parts]).decode(errors="replace")
                raise RequestFailed(f"{path}: HTTP {status}: {text}")
        except BaseException:
            writer.close()
            raise
        return cls(writer, parts)

    @property
    def port(self) -> int:
        """The client's port, by which the server's side can be told from others."""
        return int(self._writer.get_extra_info("sockname")[1])

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    async def __aiter__(self) -> AsyncIterator[str]:
        """Payloads as they arrive. Raises RequestFailed where the stream has no end mark."""
        buffered = b""
        async for part in self._parts:
            *events, buffered = (buffered + part).split(b"\n\n")
            for event in events:
                payload = event.decode().removeprefix("data: ")
                if payload == _END:
                    return
                yield payload
        raise RequestFailed("the stream broke off")


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """(status, whether the body is chunked)."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        raise RequestFailed("the server closed the connection without an answer") from None
    status_line, *headers = head.lower().split("\r\n")
    chunked = any(h.startswith("transfer-encoding:") and "chunked" in h for h in headers)
    return int(status_line.split()[1]), chunked


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    try:
        while size := int(await reader.readline() or b"0", 16):
            yield (await reader.readexactly(size + 2))[:-2]
    except (asyncio.IncompleteReadError, ConnectionError):
        return


async def _until_end(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while part := await reader.read(1 << 16):
        yield part
