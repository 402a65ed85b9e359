"""KServe's v2 protocol and Triton's extensions, by Triton's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from blink_server.testing.eventually import eventually
from blink_server.testing.fake_repository import token_ids, write_fake_version
from blink_server.testing.server_process import ServerProcess
from blink_server.testing.tiny_repository import write_json

http = pytest.importorskip("tritonclient.http")
Refused = pytest.importorskip("tritonclient.utils").InferenceServerException

Start = Callable[..., Awaitable[ServerProcess]]
ADMIN = {"Authorization": "Bearer adm1n"}


@pytest.fixture
def keys(short_path: Path) -> Path:
    path = short_path / "admin-keys"
    path.write_text("adm1n\n")
    path.chmod(0o600)
    return path


def client_of(url: str) -> Any:
    return http.InferenceServerClient(url.removeprefix("http://"), network_timeout=60.0)


def texts(name: str, *values: str, shape: list[int] | None = None, binary: bool = True) -> Any:
    given = http.InferInput(name, shape or [len(values)], "BYTES")
    array = np.array([value.encode() for value in values], dtype=np.object_)
    given.set_data_from_numpy(array.reshape(shape or [len(values)]), binary_data=binary)
    return given


async def test_a_model_from_load_to_unload(start: Start, repository: Path, keys: Path) -> None:
    write_fake_version(repository, answer="ab")
    write_fake_version(repository, "broken", exit_code=3)
    server = await start("--model-control=explicit", "--settle-secs=0", f"--admin-key-file={keys}")
    url = await server.ready()
    await asyncio.to_thread(_load_use_unload, url)


def _load_use_unload(url: str) -> None:
    client = client_of(url)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert not client.is_model_ready("echo")
    unloaded = {"name": "echo", "version": "1", "state": "UNAVAILABLE", "reason": "not loaded"}
    assert unloaded in client.get_model_repository_index()
    client.load_model("echo", headers=ADMIN)
    assert client.is_model_ready("echo")
    assert client.is_model_ready("echo", "1")
    with pytest.raises(Refused, match="exit code 3"):
        client.load_model("broken", headers=ADMIN)
    with pytest.raises(Refused, match="no model 'nothing'"):
        client.load_model("nothing", headers=ADMIN)
    metadata = client.get_model_metadata("echo")
    assert (metadata["name"], metadata["versions"]) == ("echo", ["1"])
    assert [output["name"] for output in metadata["outputs"]] == ["text_output"]
    config = client.get_model_config("echo")
    effective = json.loads(config["parameters"]["config"]["string_value"])
    assert (config["name"], effective["backend"]) == ("echo", "fake")
    result = client.infer("echo", [texts("text_input", "?")], parameters={"max_tokens": 4})
    assert result.as_numpy("text_output").tolist() == [b"?abab"]

    async def told() -> Any:
        [statistics] = client.get_inference_statistics("echo")["model_stats"]
        return statistics

    # It is counted a moment after the answer.
    statistics = asyncio.run(
        eventually(told, lambda each: each["inference_stats"]["success"]["count"] > 0)
    )
    assert statistics["inference_stats"]["success"]["count"] == 1
    assert statistics["inference_stats"]["success"]["ns"] > 0
    assert statistics["last_inference"] > 1e12
    override = json.dumps({"limits": {"context_length": 64}})
    client.load_model("echo", headers=ADMIN, config=override)
    config = client.get_model_config("echo")
    effective = json.loads(config["parameters"]["config"]["string_value"])
    assert effective["limits"]["context_length"] == 64
    client.unload_model("echo", headers=ADMIN)
    while client.is_model_ready("echo"):
        pass  # workers hear of it a moment later
    with pytest.raises(Refused):
        client.infer("echo", [texts("text_input", "?")])
    client.load_model("echo", headers=ADMIN)
    assert client.is_model_ready("echo")


async def test_infer_in_all_its_forms(start: Start, repository: Path) -> None:
    write_fake_version(repository)
    server = await start()
    await asyncio.to_thread(_infer, await server.ready())


def _infer(url: str) -> None:
    client = client_of(url)
    exclude = http.InferInput("exclude_input_in_output", [1], "BOOL")
    exclude.set_data_from_numpy(np.array([True]))
    sampling = texts("sampling_parameters", '{"max_tokens": 2, "temperature": 0}')
    for binary in (True, False):
        prompts = texts("text_input", "a", "é", shape=[2, 1], binary=binary)
        output = http.InferRequestedOutput("text_output", binary_data=binary)
        result = client.infer(
            "echo", [prompts, exclude, sampling], outputs=[output], request_id="7"
        )
        found = result.as_numpy("text_output")
        assert found.shape == (2, 1)
        assert [value if isinstance(value, str) else value.decode() for value in found.flat] == [
            "aa",
            "é",  # two tokens are two bytes
        ]
        response = result.get_response()
        assert (response["id"], response["model_name"]) == ("7", "echo")
    limit = http.InferInput("max_tokens", [1], "INT32")
    limit.set_data_from_numpy(np.array([3], dtype=np.int32))
    result = client.infer("echo", [texts("text_input", "x"), limit], "1")
    assert result.as_numpy("text_output").tolist() == [b"xxxx"]
    for inputs, word in (
        ([limit], "text_input"),
        ([texts("text_input", "x"), texts("colour", "red")], "colour"),
        ([texts("text_input", "x"), texts("sampling_parameters", "{")], "JSON object"),
    ):
        with pytest.raises(Refused, match=word):
            client.infer("echo", inputs)
    with pytest.raises(Refused, match="'other' does not exist"):
        client.infer("other", [texts("text_input", "x")])


async def test_generate_and_its_stream(start: Start, repository: Path) -> None:
    write_fake_version(repository)
    server = await start()
    url = await server.ready()
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        body = {"text_input": "a", "parameters": {"max_tokens": 3}}
        reply = await client.post("/v2/models/echo/generate", json=body)
        envelope = {"model_name": "echo", "model_version": "1"}
        assert reply.json() == {**envelope, "text_output": "aaaa"}
        body = {"text_input": "a", "max_tokens": 3, "stop_words": [], "bad_words": ""}
        reply = await client.post("/v2/models/echo/versions/1/generate_stream", json=body)
        frames = [frame for frame in reply.text.split("\n\n") if frame]
        events = [json.loads(frame.removeprefix("data: ")) for frame in frames]
        assert "".join(event["text_output"] for event in events) == "aaa"
        assert all(event.items() >= envelope.items() for event in events)
        for wrong in (
            {"text_input": 3},
            {"text_input": "a", "parameters": []},
            {"text_input": "a", "stream": True},
            {"text_input": "a", "colour": "red"},
        ):
            reply = await client.post("/v2/models/echo/generate", json=wrong)
            assert reply.status_code == 400
            assert list(reply.json()) == ["error"]
        reply = await client.post("/v2/models/echo/versions/2/generate", json=body)
        assert reply.status_code == 404


async def test_load_and_unload_need_explicit_mode_and_an_admin_key(
    start: Start, repository: Path, keys: Path
) -> None:
    write_fake_version(repository)
    server = await start()
    url = await server.ready()
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        reply = await client.post("/v2/repository/models/echo/load", headers=ADMIN)
        assert reply.status_code == 403
        assert "--admin-key-file" in reply.json()["error"]
    assert await server.stop() == 0
    server = await start(f"--admin-key-file={keys}", f"--api-key-file={keys.with_name('k')}")
    assert await server.exit() == 1  # the key file is missing
    api = keys.with_name("k")
    api.write_text("user\n")
    api.chmod(0o600)
    server = await start(f"--admin-key-file={keys}", f"--api-key-file={api}")
    url = await server.ready()
    user = {"Authorization": "Bearer user"}
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        assert (await client.get("/v2/health/ready")).status_code == 200
        assert (await client.get("/v2/models/echo")).status_code == 401
        assert (await client.get("/v2/models/echo", headers=user)).status_code == 200
        for headers, status in ((ADMIN, 503), (user, 401), ({}, 401)):
            for action in ("load", "unload"):
                path = f"/v2/repository/models/echo/{action}"
                assert (await client.post(path, headers=headers)).status_code == status


async def test_what_serves_is_ready_and_its_index_says_why_its_reload_failed(
    start: Start, repository: Path
) -> None:
    directory = write_fake_version(repository, answer="a")
    server = await start("--settle-secs=0.2", "--strict-readiness")
    url = await server.ready()
    write_json(directory / "fake.json", {"answer": token_ids("b"), "exit_code": 3})
    await server.line("exit code 3")
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        # A worker hears of it a moment after the log.
        told = await eventually(
            lambda: client.post("/v2/repository/index", json={"ready": True}),
            lambda told: "exit code 3" in told.text,
        )
        [row] = told.json()
        assert (row["name"], row["version"], row["state"]) == ("echo", "1", "READY")
        assert (await client.get("/v2/models/echo/ready")).status_code == 200
        assert (await client.get("/v2/health/ready")).status_code == 200
        write_fake_version(repository, "other", exit_code=4)
        await server.line("exit code 4")
        reply = await eventually(
            lambda: client.get("/v2/health/ready"), lambda reply: reply.status_code == 503
        )
        assert "other:1 is " in reply.text
