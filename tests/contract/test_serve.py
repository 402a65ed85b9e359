"""The whole supervision with real processes: provisioner, gunicorn, workers and fake runners."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from blink_server.testing.eventually import eventually
from blink_server.testing.fake_repository import write_fake_version
from blink_server.testing.reserved_port import reserve_port
from blink_server.testing.server_process import ServerProcess, processes

Start = Callable[..., Awaitable[ServerProcess]]
PROMPT = "Hello "


def assert_nothing_left(short_path: Path) -> None:
    assert processes(short_path / "run") == []
    # A directory that was there before, here a dead predecessor's, is emptied but stays.
    assert not (short_path / "run").exists() or not list((short_path / "run").iterdir())


async def until_ended(short_path: Path) -> None:
    """What was sent SIGKILL ends when the kernel gets to it; nobody waits for a worker's end."""

    async def left() -> Sequence[int]:
        return processes(short_path / "run")

    await eventually(left, lambda left: not left)


def body(model: str = "echo", max_tokens: int = 12, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": PROMPT}]
    return {"model": model, "messages": messages, "max_tokens": max_tokens, **more}


async def chat(url: str, **fields: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(f"{url}/v1/chat/completions", json=body(**fields))


class Stream:
    """A streamed chat whose first text has arrived."""

    def __init__(self, client: httpx.AsyncClient, response: httpx.Response) -> None:
        self.response = response
        self._client = client
        self._lines = response.aiter_lines()
        self.frames: list[str] = []

    @classmethod
    async def open(cls, url: str, max_tokens: int) -> Stream:
        client = httpx.AsyncClient(timeout=60)
        request = client.build_request(
            "POST", f"{url}/v1/chat/completions", json=body(max_tokens=max_tokens, stream=True)
        )
        stream = cls(client, await client.send(request, stream=True))
        async for line in stream._lines:
            if line and stream._keep(line) and stream.text():
                return stream
        raise AssertionError(f"no text: {stream.frames}")

    def _keep(self, line: str) -> bool:
        assert line.startswith("data: ")
        self.frames.append(line.removeprefix("data: "))
        return self.frames[-1] != "[DONE]"

    @property
    def port(self) -> int:
        stream = self.response.extensions["network_stream"]
        return int(stream.get_extra_info("client_addr")[1])

    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(frame) for frame in self.frames if frame != "[DONE]"]

    def text(self) -> str:
        choices = [c for chunk in self.chunks() for c in chunk.get("choices", [])]
        return "".join(c["delta"].get("content") or "" for c in choices)

    async def rest(self) -> list[str]:
        """All frames. Raises httpx.RemoteProtocolError when the stream breaks off."""
        async for line in self._lines:
            if line:
                self._keep(line)
        return self.frames

    async def close(self) -> None:
        await self._client.aclose()


async def until_served(url: str) -> httpx.Response:
    """A worker's own connection to a runner shows only in its answers."""
    return await eventually(lambda: chat(url), lambda reply: reply.status_code == 200)


async def test_serves_what_is_valid_says_what_is_not_and_leaves_nothing(
    start: Start, repository: Path, short_path: Path
) -> None:
    write_fake_version(repository)
    (write_fake_version(repository, "broken") / "tokenizer.json").unlink()
    server = await start("--workers=2")
    url = await server.ready()
    reply = await chat(url)
    assert reply.json()["choices"][0]["message"]["content"] == PROMPT * 6
    refused = await chat(url, model="broken")
    assert refused.status_code == 503
    assert "tokenizer.json" in refused.json()["error"]["message"]
    assert str(repository) not in refused.text
    assert (await chat(url, model="unknown")).status_code == 404
    assert (await server.line("READY in")).startswith("  echo:1 ")
    assert "UNAVAILABLE: config.json: tokenizer.file" in await server.line("broken:1 ")
    assert f"curl -N {url}/v1/chat/completions" in await server.line("curl")
    assert len(server.workers()) == 2
    assert await server.stop() == 0
    assert_nothing_left(short_path)


async def test_http_answers_while_models_load_and_is_ready_after(
    start: Start, repository: Path
) -> None:
    directory = write_fake_version(repository, load_gate="gate")
    os.mkfifo(directory / "gate")
    with reserve_port() as reserved:
        port = reserved.getsockname()[1]
        server = await start(f"--port={port}")
        await server.line("echo:1 LOADING")
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(timeout=60) as client:
        assert (await client.get(f"{url}/health/live")).status_code == 200
        assert (await client.get(f"{url}/health/ready")).status_code == 503
    assert (await chat(url)).status_code in (404, 503)
    # Opening for writing waits until the runner reads; closing lets it go on.
    await asyncio.to_thread((directory / "gate").write_bytes, b"")
    await server.ready()
    assert (await chat(url)).status_code == 200


async def test_a_port_in_use_is_one_line_and_nothing_is_started(
    start: Start, repository: Path, short_path: Path
) -> None:
    write_fake_version(repository)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = await start(f"--port={port}")
        assert await server.exit() == 1
    await server.line("error")
    assert server.lines == [f"error: cannot listen on 127.0.0.1:{port}: the port is in use"]
    assert_nothing_left(short_path)


async def test_other_machines_need_a_key(start: Start, repository: Path, short_path: Path) -> None:
    write_fake_version(repository)
    open_to_all = await start("--host=0.0.0.0")
    assert await open_to_all.exit() == 1
    assert "give --api-key-file FILE, or --insecure" in await open_to_all.line("error:")
    keys = short_path / "keys"
    keys.write_text("# for tests\ns3cret\n")
    keys.chmod(0o600)
    server = await start("--host=0.0.0.0", f"--api-key-file={keys}")
    url = await server.ready()
    assert "s3cret" not in server.output
    assert (await chat(url)).status_code == 401
    async with httpx.AsyncClient(timeout=60, headers={"Authorization": "Bearer s3cret"}) as client:
        reply = await client.post(f"{url}/v1/chat/completions", json=body())
        assert reply.status_code == 200


async def test_sigterm_refuses_new_requests_and_serves_open_ones_to_the_end(
    start: Start, repository: Path, short_path: Path
) -> None:
    write_fake_version(repository, token_seconds=0.02)
    server = await start()
    url = await server.ready()
    stream = await Stream.open(url, max_tokens=120)
    async with httpx.AsyncClient(timeout=60) as kept:
        assert (await kept.get(f"{url}/health/ready")).status_code == 200
        server.signal(signal.SIGTERM)
        await server.line("SIGTERM: draining")
        try:
            while (await kept.get(f"{url}/health/ready")).status_code == 200:
                pass
            reply = await kept.post(f"{url}/v1/chat/completions", json=body())
        except httpx.TransportError:
            pass  # the listening socket was closed first
        else:
            assert reply.status_code == 503
            assert "shutting down" in reply.json()["error"]["message"]
    frames = await stream.rest()
    assert frames[-1] == "[DONE]"
    assert stream.text() == PROMPT * 60
    assert await server.exit() == 0
    await stream.close()
    assert_nothing_left(short_path)


async def test_sigterm_during_a_load_ends_it(
    start: Start, repository: Path, short_path: Path
) -> None:
    directory = write_fake_version(repository, load_gate="gate")
    os.mkfifo(directory / "gate")
    server = await start()
    await server.line("echo:1 LOADING")
    assert await server.stop() == 0
    assert_nothing_left(short_path)


async def test_streams_longer_than_the_exit_timeout_end_with_a_word(
    start: Start, repository: Path, short_path: Path
) -> None:
    write_fake_version(repository, token_seconds=0.05)
    server = await start("--exit-timeout-secs=0")
    stream = await Stream.open(await server.ready(), max_tokens=500)
    server.signal(signal.SIGTERM)
    *_, last, error, done = await stream.rest()
    assert json.loads(last)["choices"][0]["finish_reason"] == "length"
    assert json.loads(error)["error"]["message"] == "the server has shut down"
    assert done == "[DONE]"
    assert await server.exit() == 0
    await stream.close()
    assert_nothing_left(short_path)


async def test_a_second_signal_ends_everything_at_once(
    start: Start, repository: Path, short_path: Path
) -> None:
    write_fake_version(repository, token_seconds=0.05)
    server = await start()
    stream = await Stream.open(await server.ready(), max_tokens=500)
    server.signal(signal.SIGINT)
    await server.line("SIGINT: draining")
    server.signal(signal.SIGINT)
    assert await server.exit() == 1
    await server.line("error: ended by a second signal")
    with pytest.raises(httpx.TransportError):
        await stream.rest()
    await stream.close()
    await until_ended(short_path)
    assert_nothing_left(short_path)


async def test_a_killed_runner_ends_its_streams_with_an_error_and_comes_back(
    start: Start, repository: Path
) -> None:
    gate = write_fake_version(repository, token_seconds=0.02, load_gate="gate") / "gate"
    os.mkfifo(gate)  # a load waits until it is written to
    write_fake_version(repository, "other")
    server = await start()
    await server.line("echo:1 LOADING")
    await asyncio.to_thread(gate.write_bytes, b"")
    url = await server.ready()
    stream = await Stream.open(url, max_tokens=500)
    victim = next(n for n in (1, 2) if "/echo/" in environment_of(server.runner(n).pid, repository))
    os.kill(server.runner(victim).pid, signal.SIGKILL)
    frames = await stream.rest()
    assert "error" in json.loads(frames[-2])
    assert frames[-1] == "[DONE]"
    await server.line("echo:1 UNAVAILABLE: runner exited: signal SIGKILL")
    refused = await chat(url)
    assert refused.status_code == 503
    assert refused.headers["Retry-After"]
    assert (await chat(url, model="other")).status_code == 200
    await asyncio.to_thread(gate.write_bytes, b"")
    assert (await until_served(url)).json()["choices"][0]["message"]["content"] == PROMPT * 6
    await stream.close()


def environment_of(pid: int, repository: Path) -> str:
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    (found,) = (v for v in variables if v.startswith("BLINK_VERSION_DIRECTORY="))
    return found


async def test_a_killed_worker_harms_its_own_streams_only(start: Start, repository: Path) -> None:
    write_fake_version(repository, token_seconds=0.02)
    server = await start("--workers=2")
    url = await server.ready()
    stream = await Stream.open(url, max_tokens=100)
    own = server.worker_serving(stream.port)
    (other,) = (worker for worker in server.workers() if worker != own)
    os.kill(other.pid, signal.SIGKILL)
    frames = await stream.rest()
    assert frames[-1] == "[DONE]"
    assert stream.text() == PROMPT * 50
    await stream.close()
    broken = await Stream.open(url, max_tokens=500)
    os.kill(server.worker_serving(broken.port).pid, signal.SIGKILL)
    with pytest.raises(httpx.TransportError):
        await broken.rest()
    await broken.close()
    await until_served(url)
    assert server.runner(1).alive


async def test_a_killed_gunicorn_is_started_again(
    start: Start, repository: Path, short_path: Path
) -> None:
    write_fake_version(repository)
    server = await start()
    url = await server.ready()
    before = server.front()
    os.kill(before.pid, signal.SIGKILL)
    await server.line("gunicorn ended: signal SIGKILL; starting it again")
    async with httpx.AsyncClient(timeout=60) as client:
        assert (await client.get(f"{url}/health/live")).status_code == 200
    await until_served(url)
    assert await server.stop() == 0
    assert_nothing_left(short_path)


async def test_a_broken_key_file_and_a_killed_gunicorn_do_not_end_the_server(
    start: Start, repository: Path, short_path: Path
) -> None:
    write_fake_version(repository)
    keys = short_path / "keys"

    def write_keys() -> None:
        keys.write_text("s3cret\n")
        keys.chmod(0o600)

    async def kill_gunicorn(server: ServerProcess) -> None:
        keys.unlink()
        os.kill(server.front().pid, signal.SIGKILL)
        await server.line(f"a new worker cannot start: API key file {keys}: No such file")
        write_keys()
        headers = {"Authorization": "Bearer s3cret"}
        async with httpx.AsyncClient(timeout=60, headers=headers) as client:
            reply = await client.get(f"{url}/v1/models")
        assert [model["id"] for model in reply.json()["data"]] == ["echo"]

    write_keys()
    server = await start(f"--api-key-file={keys}")
    url = await server.ready()
    runner = server.runner()
    await kill_gunicorn(server)
    server.signal(signal.SIGKILL)
    await server.exit()
    successor = await start(f"--api-key-file={keys}")
    assert await successor.ready() == url
    await kill_gunicorn(successor)
    assert runner.alive
    assert await successor.stop() == 0
    assert_nothing_left(short_path)


async def test_workers_that_cannot_start_end_the_server_with_an_error(
    start: Start, repository: Path, short_path: Path
) -> None:
    write_fake_version(repository)
    plugin = short_path / "plugins" / "worker_only.py"
    plugin.write_text("import os\nassert 'BLINK_METRICS_DIRECTORY' not in os.environ, 'boom'\n")
    plugin.chmod(0o600)
    server = await start()
    assert await server.exit() == 1
    assert "the HTTP workers cannot run" in await server.line("error:")
    assert_nothing_left(short_path)


async def test_everything_serves_on_without_the_provisioner_until_a_successor_comes(
    start: Start, repository: Path, short_path: Path
) -> None:
    write_fake_version(repository, token_seconds=0.02)
    first = await start()
    url = await first.ready()
    stream = await Stream.open(url, max_tokens=100)
    runner, front, workers = first.runner(), first.front(), first.workers()
    first.signal(signal.SIGKILL)
    await first.exit()
    assert (await chat(url)).status_code == 200
    successor = await start()
    assert await successor.ready() == url
    assert (successor.runner(), successor.front()) == (runner, front)
    assert successor.workers() == workers
    await stream.rest()
    assert stream.text() == PROMPT * 50
    await stream.close()
    os.kill(runner.pid, signal.SIGKILL)
    await successor.line("echo:1 UNAVAILABLE: runner exited")
    await until_served(url)
    assert await successor.stop() == 0
    assert_nothing_left(short_path)


async def test_a_second_server_on_one_runtime_directory_is_refused(
    start: Start, repository: Path
) -> None:
    write_fake_version(repository)
    server = await start()
    url = await server.ready()
    second = await start()
    assert await second.exit() == 1
    assert f"in use by the server {server.pid}" in await second.line("error:")
    assert (await chat(url)).status_code == 200
