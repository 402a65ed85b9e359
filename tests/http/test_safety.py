"""Keys, limits, request ids, the access log, CORS."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from blink_server.backend import TokenEvent
from blink_server.errors import BlinkError, EngineFailure
from blink_server.http.settings import ServerSettings, key_digest
from blink_server.http_options import HttpOptions

COMPLETIONS = "/v1/completions"
BODY = {"model": "tiny", "prompt": "x"}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def write_keys(path: Path, *keys: str) -> None:
    """Replace a key file at once, as an operator's editor does."""
    new = path.with_suffix(".new")
    new.write_text("\n".join(keys))
    new.chmod(0o600)
    new.replace(path)


async def test_a_changed_key_file_is_read_again(worker: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    write_keys(file, "one", "two")
    worker.settings = ServerSettings(
        api_key_file=file, api_key_digests=frozenset({key_digest("given")})
    )
    worker.serve("ok")

    async def allowed() -> list[str]:
        results = {
            key: await worker.post(COMPLETIONS, BODY, headers=bearer(key))
            for key in ("one", "two", "three", "given")
        }
        assert {result.status_code for result in results.values()} <= {200, 401}
        return [key for key, result in results.items() if result.status_code == 200]

    assert await allowed() == ["one", "two", "given"]
    write_keys(file, "two", "three")
    assert await allowed() == ["two", "three", "given"]


async def test_a_key_file_gone_bad_leaves_the_keys_as_they_were(
    worker: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    write_keys(file, "one")
    worker.settings = ServerSettings(api_key_file=file)
    worker.serve("ok")
    assert (await worker.post(COMPLETIONS, BODY, headers=bearer("one"))).status_code == 200
    file.unlink()
    for _ in range(2):
        assert (await worker.post(COMPLETIONS, BODY, headers=bearer("one"))).status_code == 200
        assert (await worker.post(COMPLETIONS, BODY)).status_code == 401
    errors = [entry for entry in caplog.records if entry.levelno == logging.ERROR]
    assert len(errors) == 1
    assert str(file) in errors[0].getMessage()
    write_keys(file, "two")
    assert (await worker.post(COMPLETIONS, BODY, headers=bearer("one"))).status_code == 401
    assert (await worker.post(COMPLETIONS, BODY, headers=bearer("two"))).status_code == 200


def test_a_bad_key_file_at_the_start_is_an_error(worker: Any, tmp_path: Path) -> None:
    worker.settings = ServerSettings(api_key_file=tmp_path / "none")
    with pytest.raises(BlinkError, match="none"):
        _ = worker.client


async def test_anthropics_key_header_works_too(worker: Any) -> None:
    worker.settings = ServerSettings(api_key_digests=frozenset({key_digest("one")}))
    worker.serve("ok")
    for key, status in [("one", 200), ("two", 401)]:
        result = await worker.post(COMPLETIONS, BODY, headers={"x-api-key": key})
        assert result.status_code == status


async def test_a_key_has_a_limited_number_of_requests_in_progress(worker: Any) -> None:
    digests = frozenset(map(key_digest, ("one", "two")))
    worker.settings = ServerSettings(
        api_key_digests=digests, http=HttpOptions(max_requests_per_key=2)
    )
    gate = asyncio.Event()
    session = worker.serve(lambda request: [TokenEvent([50]), gate, EngineFailure("ended")])
    running = [worker.open(COMPLETIONS, BODY, headers=bearer("one"))[0] for _ in range(2)]
    await session.attempted(2)
    refused = await worker.post(COMPLETIONS, BODY, headers=bearer("one"))
    assert refused.status_code == 429
    assert refused.json["error"]["code"] == "rate_limit_exceeded"
    assert refused.headers["retry-after"]
    assert (await worker.get("/v1/models", headers=bearer("one"))).status_code == 200
    running.append(worker.open(COMPLETIONS, BODY, headers=bearer("two"))[0])
    await session.attempted(3)
    gate.set()
    await asyncio.gather(*running)
    again = await worker.post(COMPLETIONS, BODY, headers=bearer("one"))
    assert again.status_code == 500  # served: the engine's failure


@pytest.mark.parametrize("n", [1, 2])
async def test_an_answer_that_takes_too_long_is_ended(worker: Any, n: int) -> None:
    worker.settings = ServerSettings(http=HttpOptions(request_timeout_secs=0))
    session = worker.serve(lambda request: [asyncio.Event()])
    result = await worker.complete(n=n)
    assert (result.status_code, result.json["error"]["code"]) == (504, "timeout")
    assert session.in_flight == 0


async def test_a_stream_that_takes_too_long_says_so(worker: Any, frames: Any) -> None:
    worker.settings = ServerSettings(http=HttpOptions(request_timeout_secs=0.05))
    session = worker.serve(lambda request: [TokenEvent([50]), asyncio.Event()])
    chunks = frames((await worker.complete(stream=True)).content)
    assert chunks[-1]["error"]["code"] == "timeout"
    assert session.in_flight == 0


async def test_a_body_that_does_not_arrive_is_given_up(worker: Any) -> None:
    worker.settings = ServerSettings(body_seconds=0)
    worker.serve("ok")
    task, sent = worker.open(COMPLETIONS, BODY, arrives=False)
    await task
    assert sent.events[0]["status"] == 408
    assert b"slow_body" in sent.body


async def test_request_ids_are_told_back_or_made(worker: Any) -> None:
    worker.serve("ok")
    given = await worker.post(COMPLETIONS, BODY, headers={"X-Request-Id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    made = {(await worker.complete()).headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    for bad in ("a b", "x" * 129, "é"):
        result = await worker.post(COMPLETIONS, BODY, headers={"X-Request-Id": bad})
        assert result.headers["x-request-id"] != bad
    error = await worker.post("/v1/nothing", {}, headers={"X-Request-Id": "abc-2"})
    assert error.headers["x-request-id"] == "abc-2"


async def test_failures_are_logged_with_their_request(
    worker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker.serve(lambda request: [TokenEvent([50]), EngineFailure("gone")])
    body = {**BODY, "stream": True}
    await worker.post(COMPLETIONS, body, headers={"X-Request-Id": "abc-3"})
    assert "request abc-3 failed in its engine: gone" in caplog.text


async def test_the_access_log_has_a_line_a_request_and_no_prompts(
    worker: Any, tmp_path: Path
) -> None:
    log = tmp_path / "access.log"
    worker.settings = ServerSettings(
        http=HttpOptions(access_log=str(log)), api_key_digests=frozenset({key_digest("one")})
    )
    session = worker.serve("answer text")
    headers = {**bearer("one"), "X-Request-Id": "abc"}
    body = {"model": "tiny", "prompt": "prompt text", "n": 2, "user": "me", "stream": True}
    usage = {"stream_options": {"include_usage": True}}
    await worker.post(COMPLETIONS, {**body, **usage}, headers=headers)
    await worker.post(COMPLETIONS, {**body, "temperature": 9}, headers=headers)
    await worker.post(COMPLETIONS, body)
    served, refused, unknown = [json.loads(line) for line in log.read_text().splitlines()]
    assert served["completion_tokens"] > 0
    assert served["prompt_tokens"] == len(session.requests[0].prompt_ids)
    expected = {
        "request_id": "abc",
        "method": "POST",
        "path": COMPLETIONS,
        "status": 200,
        "key": key_digest("one").hex()[:12],
        "model": "tiny",
        "user": "me",
        "stream": True,
        "finish_reasons": ["stop", "stop"],
        "error": None,
    }
    assert {name: served[name] for name in expected} == expected
    assert (refused["status"], refused["finish_reasons"]) == (400, [])
    assert (unknown["status"], unknown["key"]) == (401, None)
    assert unknown["error"] == "invalid_api_key"
    text = log.read_text()
    assert "prompt text" not in text
    assert "answer text" not in text


async def test_the_access_log_tells_of_clients_that_went_away(worker: Any, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    worker.settings = ServerSettings(http=HttpOptions(access_log=str(log)))
    session = worker.serve(lambda request: [asyncio.Event()])
    task, _ = worker.open(COMPLETIONS, BODY)
    await session.attempted(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [entry] = [json.loads(line) for line in log.read_text().splitlines()]
    assert (entry["status"], entry["finish_reasons"]) == (0, ["abort"])


async def test_other_origins_are_not_let_in_by_default(worker: Any) -> None:
    worker.serve("ok")
    headers = {"Origin": "https://page.example"}
    result = await worker.post(COMPLETIONS, BODY, headers=headers)
    assert "access-control-allow-origin" not in result.headers


async def test_given_origins_are_let_in_and_may_ask_without_a_key(worker: Any) -> None:
    worker.settings = ServerSettings(
        http=HttpOptions(cors_origins="https://page.example"),
        api_key_digests=frozenset({key_digest("one")}),
    )
    worker.serve("ok")
    preflight = {
        "Origin": "https://page.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    async with worker.client as conductor:
        asked = await conductor.simulate_options(COMPLETIONS, headers=preflight)
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == "https://page.example"
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert "authorization" in asked.headers["access-control-allow-headers"]
    headers = {"Origin": "https://page.example"}
    refused = await worker.post(COMPLETIONS, BODY, headers=headers)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://page.example"
    other = await worker.post(COMPLETIONS, BODY, headers={"Origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers
