"""Texts that cannot fit are refused before anything is computed; WebSockets always."""

from __future__ import annotations

from typing import Any

import pytest

from blink_server.http.app import create_app
from blink_server.text.tokenizers import HuggingFaceTokenizer


@pytest.fixture
def counted(monkeypatch: Any) -> list[int]:
    """The lengths of all texts that are encoded."""
    lengths: list[int] = []
    encode = HuggingFaceTokenizer.encode

    def counting(self: HuggingFaceTokenizer, text: str, **options: Any) -> list[int]:
        lengths.append(len(text))
        return encode(self, text, **options)

    monkeypatch.setattr(HuggingFaceTokenizer, "encode", counting)
    return lengths


async def test_a_text_that_cannot_fit_is_not_encoded(worker: Any, counted: list[int]) -> None:
    worker.serve("hello")
    counted.clear()  # the answer of the scripted session
    for fields in ({"prompt": "ab " * 1_000_000}, {"prompt": ["fits", "日本" * 500_000]}):
        result = await worker.complete(**fields)
        assert result.status_code == 400
        assert result.json["error"]["code"] == "context_length_exceeded"
        assert result.json["error"]["param"] == "prompt"
    assert counted == [4]
    assert (await worker.complete(prompt="fits")).status_code == 200


async def test_chats_that_cannot_fit_are_not_encoded(worker: Any, counted: list[int]) -> None:
    worker.serve("hello")
    counted.clear()  # the answer of the scripted session
    many = [{"role": "user", "content": "a"}] * 100_000
    long = [{"role": "user", "content": "ab " * 1_000_000}]
    for messages in (many, long):
        result = await worker.post("/v1/chat/completions", {"model": "tiny", "messages": messages})
        assert result.status_code == 400
        assert result.json["error"]["param"] == "messages"
        assert result.json["error"]["code"] == "context_length_exceeded"
    assert counted == []


async def test_tokenize_takes_a_megabyte(worker: Any, counted: list[int]) -> None:
    worker.serve("hello")
    counted.clear()  # the answer of the scripted session
    body = {"model": "tiny", "prompt": "a" * ((1 << 20) + 1)}
    assert (await worker.post("/tokenize", body)).status_code == 400
    assert counted == []


async def test_a_websocket_is_refused(worker: Any) -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    scope = {"type": "websocket", "path": "/v1/models", "headers": [], "query_string": b""}
    await create_app(worker.directory)(scope, receive, send)
    assert [event["type"] for event in sent] == ["websocket.close"]
