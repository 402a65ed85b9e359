"""Versions that cannot be served: each is named with its reason, and the others serve."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from blink_server.testing.eventually import eventually
from blink_server.testing.server_process import ServerProcess

CopyTiny = Callable[[str], Path]


async def post(url: str, model: str) -> httpx.Response:
    body = {"model": model, "prompt": "Hello", "max_tokens": 2}
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(f"{url}/v1/completions", json=body)


def has_reason(reply: httpx.Response) -> bool:
    return reply.status_code == 503 and "model.onnx" in reply.text


def engine_file(version: Path) -> Path:
    name: str = json.loads((version / "config.json").read_text())["engine"]["file"]
    return version / name


async def test_a_missing_and_a_corrupt_engine_file_leave_the_rest_serving(
    start: Callable[..., Any],
    repository: Path,
    copy_tiny: CopyTiny,
    blink_server: Callable[..., str],
    assert_nothing_left: Callable[[], None],
) -> None:
    copy_tiny("good")
    missing = engine_file(copy_tiny("missing"))
    missing.unlink()
    corrupt = engine_file(copy_tiny("corrupt"))
    corrupt.write_bytes(corrupt.read_bytes()[: corrupt.stat().st_size // 2])
    assert missing.name in blink_server("check", str(repository), status=1)
    server: ServerProcess = await start()
    url = await server.ready()
    for name in ("missing", "corrupt"):
        assert "model.onnx" in await server.line(f"  {name}:1  UNAVAILABLE")
    for name in ("missing", "corrupt"):
        # A worker hears the reason a moment after the summary.
        refused = await eventually(partial(post, url, name), has_reason)
        message = refused.json()["error"]["message"]
        assert name in message
        assert str(repository) not in message
    assert (await post(url, "good")).status_code == 200
    assert await server.stop() == 0
    assert_nothing_left()


async def test_a_graph_that_was_built_for_another_compute_is_not_served(
    start: Callable[..., Any], copy_tiny: CopyTiny
) -> None:
    config = copy_tiny("other") / "config.json"
    document = json.loads(config.read_text())
    assert document["engine"]["compute"] == "int8"
    document["engine"]["compute"] = "fp32"
    config.write_text(json.dumps(document))
    server: ServerProcess = await start()
    reason = await server.line("  other:1  UNAVAILABLE")
    assert "engine.compute: is 'fp32'; model.onnx was built for 'int8'" in reason
    assert "--compute fp32" in reason
    assert await server.stop() == 0


def test_check_says_file_field_and_what_would_be_right(
    repository: Path, copy_tiny: CopyTiny, blink_server: Callable[..., str]
) -> None:
    config = copy_tiny("typo") / "config.json"
    document = json.loads(config.read_text())
    document["engine"]["name"] = "onx_cpu"
    config.write_text(json.dumps(document))
    said = blink_server("check", str(repository), status=1)
    assert "engine.name" in said
    assert "onx_cpu" in said
    assert "did you mean 'onnx_cpu'?" in said


def test_check_finds_an_imported_version_good(
    tiny_repository: Path, blink_server: Callable[..., str]
) -> None:
    assert "tiny" in blink_server("check", str(tiny_repository))
