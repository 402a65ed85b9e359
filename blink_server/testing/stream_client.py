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
    async for payload in stream_payloads(url, path, asked):
        arrived = time.monotonic_ns()
        chunk = json.loads(payload)
        if "error" in chunk:
            raise RequestFailed(f"{path}: {chunk['error']['message']}")
        answer.usage = chunk.get("usage") or answer.usage
        for choice in chunk["choices"]:
            text = choice["delta"].get("content") if "delta" in choice else choice["text"]
            if text:
                answer.pieces.append((arrived, text))
                on_text(text)
            answer.finish_reason = choice["finish_reason"] or answer.finish_reason
    return answer


async def stream_payloads(url: str, path: str, body: Mapping[str, Any]) -> AsyncIterator[str]:
    """The payload of every event of a streamed response, without the end mark.

    Raises RequestFailed for a status other than 200 and for a stream without its end mark.
    """
    host = urlsplit(url)
    reader, writer = await asyncio.open_connection(host.hostname, host.port)
    try:
        content = json.dumps(body).encode()
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: {host.netloc}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        status, chunked = await _read_head(reader)
        parts = _chunks(reader) if chunked else _until_end(reader)
        if status != 200:
            text = b"".join([part async for part in parts]).decode(errors="replace")
            raise RequestFailed(f"{path}: HTTP {status}: {text}")
        async for payload in _events(parts):
            if payload == _END:
                return
            yield payload
        raise RequestFailed(f"{path}: the stream broke off")
    finally:
        writer.close()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """(status, whether the body is chunked)."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        raise RequestFailed("the server closed the connection without an answer") from None
    status_line, *headers = head.lower().split("\r\n")
    chunked = any(h.startswith("transfer-encoding:") and "chunked" in h for h in headers)
    return int(status_line.split()[1]), chunked


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    try:
        while size := int(await reader.readline() or b"0", 16):
            yield (await reader.readexactly(size + 2))[:-2]
    except asyncio.IncompleteReadError:
        return


async def _until_end(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while part := await reader.read(1 << 16):
        yield part


async def _events(parts: AsyncIterator[bytes]) -> AsyncIterator[str]:
    buffered = b""
    async for part in parts:
        *events, buffered = (buffered + part).split(b"\n\n")
        for event in events:
            yield event.decode().removeprefix("data: ")
