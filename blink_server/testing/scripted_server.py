"""An OpenAI-compatible server that follows a script, for tests of what asks one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

Answer = Callable[[str, asyncio.StreamReader], AsyncIterator[bytes]]
"""What is written for a request to a path, below /v1, piece by piece."""

USAGE = {"prompt_tokens": 11, "completion_tokens": 22}


class ScriptedServer:
    """One connection a request; `asked` has path, headers and body of each but the probes."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Mapping[str, str], Any]] = []
        self.models: bytes = reply({"data": [{"id": "theirs"}]})
        self.answer: Answer = events()
        self._server: asyncio.Server

    async def start(self) -> str:
        """Listen; returns the base URL."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    def stop(self) -> None:
        """Take no further connections."""
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path = head.split()[1].removeprefix("/v1/")
        try:
            if path == "models":
                writer.write(self.models)
            else:
                self.asked.append((path, headers, json.loads(body)))
                async for piece in self.answer(path, reader):
                    writer.write(piece)
                    await writer.drain()
        finally:
            writer.close()


def reply(document: Any, status: str = "200 OK", *headers: str) -> bytes:
    """A whole response."""
    lines = (f"HTTP/1.1 {status}", "Connection: close", *headers, "", json.dumps(document))
    return "\r\n".join(lines).encode()


def refusal(status: str, *headers: str) -> Answer:
    """Answers with an error."""

    async def answer(path: str, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        yield reply({"error": {"message": "as it says"}}, status, *headers)

    return answer


def events(*choices: Any, usage: Any = USAGE, done: bool = True) -> Answer:
    """Answers with a stream of these choices, each a chunk; what has an "error" is one itself."""

    async def answer(path: str, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n: a comment\n\n"
        for choice in choices:
            chunk = choice if "error" in choice else {"choices": [choice]}
            yield f"data: {json.dumps(chunk)}\n\n".encode()
        if usage:
            yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode()
        if done:
            yield b"data: [DONE]\n\n"

    return answer
