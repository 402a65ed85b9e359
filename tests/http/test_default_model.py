"""Requests that name no model get the server's default, or the only model that there is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blink_server.backend import ModelVersion
from blink_server.http_options import HttpOptions
from blink_server.repository.harness import State

CHAT = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": CHAT, "max_tokens": 5},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5]},
}


def serve(worker: Any, *models: str) -> None:
    """Publish versions 1 and 2 of each; a model answers with its name."""
    entries = []
    for model in models:
        for version in (1, 2):
            entry = worker.entry(worker.session(f"{model} {version}"), version=version)
            config = entry.version.config
            entries.append(
                replace(entry, version=ModelVersion(model, version, Path("unused"), config))
            )
    worker.directory.publish(entries)


@pytest.mark.parametrize("path", BODIES)
async def test_the_only_model_is_the_default(worker: Any, path: str) -> None:
    serve(worker, "one")
    for body in (BODIES[path], {**BODIES[path], "model": None}):
        result = await worker.post(path, body)
        assert result.status_code == 200
        assert result.json.get("model", "one") == "one"


@pytest.mark.parametrize("path", BODIES)
async def test_of_several_models_one_has_to_be_named(worker: Any, path: str) -> None:
    serve(worker, "one", "two")
    result = await worker.post(path, BODIES[path])
    assert result.status_code == 400
    message = result.json["error"]["message"]
    assert message == "model is missing, and the server has no default; one, two serve"


async def test_models_that_are_down_are_not_offered(worker: Any) -> None:
    serve(worker, "one", "two", "three")
    down = [
        replace(entry, state=State.UNAVAILABLE, session=None)
        for entry in worker.directory.entries
        if entry.version.model == "two" or entry.version.key == "one:1"
    ]
    up = [entry for entry in worker.directory.entries if entry.version.model != "two"]
    worker.directory.publish([*(e for e in up if e.version.key != "one:1"), *down])
    result = await worker.post("/v1/completions", BODIES["/v1/completions"])
    assert result.json["error"]["message"].endswith("; one, three serve")


async def test_without_models_none_is_the_default(worker: Any) -> None:
    result = await worker.post("/v1/completions", BODIES["/v1/completions"])
    assert result.status_code == 400
    assert result.json["error"]["param"] == "model"
    assert result.json["error"]["message"].endswith("; none serves")


@pytest.mark.parametrize(("default", "text"), [("two", "two 2"), ("two:1", "two 1")])
async def test_the_server_s_default_wins(worker: Any, default: str, text: str) -> None:
    worker.settings = replace(worker.settings, http=HttpOptions(default_model=default))
    serve(worker, "one", "two")
    result = await worker.post("/v1/completions", {"prompt": "x"})
    assert result.json["choices"][0]["text"] == text
    named = await worker.post("/v1/completions", {"prompt": "x", "model": "one"})
    assert named.json["choices"][0]["text"] == "one 2"


async def test_a_default_that_is_not_there_is_named(worker: Any) -> None:
    worker.settings = replace(worker.settings, http=HttpOptions(default_model="three"))
    serve(worker, "one")
    result = await worker.post("/v1/completions", {"prompt": "x"})
    assert result.status_code == 404
    message = result.json["error"]["message"]
    assert message == "the model 'three' does not exist or is not in service; one serves"
