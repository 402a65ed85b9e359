"""Bodies that mean harm: each is answered, none with a 5xx, and afterwards every slot is free."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from blink_server.http.messages_request import MESSAGES
from blink_server.http.openai_fields import chat_table, completion_table
from blink_server.http.responses_request import RESPONSES
from blink_server.http.tokenize_routes import DETOKENIZE, TOKENIZE_CHAT

CHAT = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
GOOD: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/completions": (completion_table(8), {"prompt": ["x", "y"], "n": 2}),
    "/v1/chat/completions": (chat_table(8), {"messages": CHAT, "tools": [TOOL]}),
    "/v1/responses": (RESPONSES, {"input": [{"role": "user", "content": "Hi"}]}),
    "/v1/messages": (MESSAGES, {"messages": CHAT, "max_tokens": 5}),
    "/tokenize": (TOKENIZE_CHAT, {"messages": CHAT}),
    "/detokenize": (DETOKENIZE, {"tokens": [1, 2, 3]}),
}


def deep(levels: int) -> Any:
    value: Any = "end"
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


VALUES: list[Callable[[random.Random], Any]] = [
    lambda rng: None,
    lambda rng: rng.choice([True, False]),
    lambda rng: rng.choice([-1, 0, 1, 2**31, 2**63, -(2**63), 10**300, 10**4000]),
    lambda rng: rng.choice([-0.0, 0.5, 1e308, -1e308, 5e-324]),
    lambda rng: rng.choice(["", "\x00", "\ud800", "text", "‮", "x" * 100_000, "function"]),
    lambda rng: [rng.randint(-5, 500) for _ in range(rng.choice([0, 1, 5000]))],
    lambda rng: {str(rng.randint(0, 9)): rng.choice([1, "x", None]) for _ in range(3)},
    lambda rng: deep(rng.choice([5, 200, 900])),
    lambda rng: [{"type": rng.choice(["text", "image_url", 5]), "text": "x"}] * 3,
    lambda rng: [{"role": rng.choice(["user", "tool", "", None]), "content": deep(3)}],
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything within a document, six levels down."""
    found = [path] if path else []
    if not isinstance(value, dict | list) or len(path) == 6:
        return found
    items = value.items() if isinstance(value, dict) else enumerate(value[:10])
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def mutated(rng: random.Random, table: Any, good: dict[str, Any]) -> dict[str, Any]:
    """A good body with something put in its place, at any depth, or a field of any kind added."""
    body = {"model": "tiny", **copy.deepcopy(good)}
    for _ in range(rng.randint(1, 3)):
        value = rng.choice(VALUES)(rng)
        if rng.random() < 0.5:
            body[rng.choice([*table.fields, "unknown", "\ud800", "k" * 5000])] = value
            continue
        *way, last = rng.choice(places(body))
        holder: Any = body
        for key in way:
            holder = holder[key]
        holder[last] = value
    return body


def broken(rng: random.Random, data: bytes) -> bytes:
    """Bytes that are no JSON, most of the time."""
    match rng.randrange(5):
        case 0:
            return data[: rng.randrange(len(data))]
        case 1:
            place = rng.randrange(len(data))
            return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
        case 2:
            return data + b"\x00{}"
        case 3:
            return b"[" * 100_000
        case _:
            return data.decode().encode("utf-16")


async def attack(worker: Any, seed: int) -> None:
    rng = random.Random(seed)
    path = rng.choice(list(GOOD))
    data = json.dumps(mutated(rng, *GOOD[path])).encode()
    if rng.random() < 0.2:
        data = broken(rng, data)
    result = await worker.post(path, data)
    assert result.status_code < 500, (seed, path, result.text)
    assert result.status_code in (200, 400, 404, 413)


@pytest.mark.parametrize("block", range(10))
async def test_bodies_that_mean_harm(worker: Any, block: int) -> None:
    session = worker.serve("fine")
    for seed in range(20 * block, 20 * (block + 1)):
        await attack(worker, seed)
    assert session.in_flight == 0
    assert (await worker.complete()).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("block", range(18))
async def test_more_bodies_that_mean_harm(worker: Any, block: int) -> None:
    session = worker.serve("fine")
    for seed in range(200 + 100 * block, 200 + 100 * (block + 1)):
        await attack(worker, seed)
    assert session.in_flight == 0
    assert (await worker.complete()).status_code == 200


async def test_a_body_of_100_megabytes_is_refused_unread(worker: Any) -> None:
    worker.serve("fine")
    headers = {"Content-Length": str(100 * 2**20)}
    task, sent = worker.open("/v1/completions", {"prompt": "x"}, arrives=False, headers=headers)
    await task
    assert sent.events[0]["status"] == 413
