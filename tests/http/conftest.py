"""A worker's application over a scripted session, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import falcon.testing
import openai
import pytest

from blink_server.backend import ModelVersion, SessionLimits
from blink_server.http.app import create_app
from blink_server.http.metrics import Metrics
from blink_server.http.model_entry import ModelEntry
from blink_server.http.models import ModelDirectory
from blink_server.http.settings import ServerSettings
from blink_server.http.text_parts import TextParts
from blink_server.http_options import HttpOptions
from blink_server.repository.harness import State
from blink_server.testing.fake_backend import FakeSession, Respond, answer
from blink_server.testing.tiny_tokenizer import CHAT_TEMPLATE, IM_END, byte_level_tokenizer
from blink_server.text.chat_template import ChatTemplate
from blink_server.text.tokenizers import HuggingFaceTokenizer
from blink_server.text.tools.json_formats import Hermes

CONTEXT = 128
LIMIT_SECONDS = 30  # for what should take milliseconds


@pytest.fixture(scope="session")
def tokenizer() -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(byte_level_tokenizer())


class Worker:
    """The application, its directory, and the sessions behind it."""

    def __init__(self, tokenizer: HuggingFaceTokenizer) -> None:
        self.tokenizer = tokenizer
        self.directory = ModelDirectory()
        self.settings = ServerSettings(max_n=8)
        self.metrics = Metrics()
        self._client: falcon.testing.TestClient | None = None

    def session(self, respond: Respond | str, *, free_slots: int | None = None) -> FakeSession:
        """A session that answers by a rule, or every request with one text."""
        if isinstance(respond, str):
            respond = answer(self.tokenizer, respond, eos=IM_END)
        limits = SessionLimits(CONTEXT, self.tokenizer.vocabulary_size, (IM_END,))
        return FakeSession(respond, limits, free_slots=free_slots)

    def entry(
        self,
        session: FakeSession | None,
        *,
        version: int = 1,
        epoch: int = 1,
        state: State = State.READY,
        template: str | None = CHAT_TEMPLATE,
        **config: Any,
    ) -> ModelEntry:
        """An entry of the model "tiny"; `config` goes into its config.json."""
        chat_template = None if template is None else ChatTemplate(template)
        fields = {"bos_token_id": None, "default_sampling": {}, **config}
        return ModelEntry(
            ModelVersion("tiny", version, Path("unused"), fields),
            epoch,
            state,
            reason="out of luck" if state is State.UNAVAILABLE else "",
            session=session,
            text=TextParts(self.tokenizer, chat_template),
        )

    def serve(self, respond: Respond | str, **options: Any) -> FakeSession:
        """Publish "tiny" alone, on a new session."""
        session = self.session(respond)
        self.directory.publish([self.entry(session, **options)])
        return session

    @property
    def client(self) -> falcon.testing.TestClient:
        if self._client is None:
            app = create_app(self.directory, self.settings, metrics=self.metrics)
            self._client = falcon.testing.TestClient(app)
        return self._client

    async def post(self, path: str, body: Any, **options: Any) -> falcon.testing.Result:
        """POST `body` as JSON (bytes as they are)."""
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **options.pop("headers", {})}
        async with self.client as conductor:
            return await conductor.simulate_post(path, body=body, headers=headers, **options)

    async def get(self, path: str, **options: Any) -> falcon.testing.Result:
        async with self.client as conductor:
            return await conductor.simulate_get(path, **options)

    async def complete(self, prompt: Any = "Hello", **fields: Any) -> falcon.testing.Result:
        return await self.post("/v1/completions", {"model": "tiny", "prompt": prompt, **fields})

    async def chat(self, content: Any = "Hello", **fields: Any) -> falcon.testing.Result:
        messages = fields.pop("messages", [{"role": "user", "content": content}])
        body = {"model": "tiny", "messages": messages, **fields}
        return await self.post("/v1/chat/completions", body)

    def open(
        self,
        path: str,
        body: Any,
        *,
        blocked: bool = False,
        arrives: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[asyncio.Task[None], Sent]:
        """Run one request as the ASGI server does; cancel the task as it does on a disconnect.

        `blocked`: nothing can be sent to the client; `arrives`: all of the body does.
        """
        payload = json.dumps(body).encode()
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(payload)),
            **(headers or {}),
        }
        scope = falcon.testing.create_scope(path=path, method="POST", headers=headers)
        inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        begun = payload if arrives else payload[:1]
        inbox.put_nowait({"type": "http.request", "body": begun, "more_body": not arrives})
        sent = Sent(blocked)
        app: Callable[..., Any] = self.client.app
        return asyncio.create_task(app(scope, inbox.get, sent)), sent


class Sent:
    """What the application sent: the events as they came, and a wait for more of them."""

    def __init__(self, blocked: bool) -> None:
        self.blocking = asyncio.Event()
        self._blocked = blocked
        self.events: list[dict[str, Any]] = []
        self._arrived = asyncio.Event()

    async def __call__(self, event: dict[str, Any]) -> None:
        if self._blocked:
            self.blocking.set()
            await asyncio.Event().wait()
        self.events.append(event)
        self._arrived.set()

    @property
    def body(self) -> bytes:
        return b"".join(event.get("body", b"") for event in self.events)

    async def until(self, text: bytes) -> None:
        """Return when the body has `text`."""
        while text not in self.body:
            self._arrived.clear()
            await self._arrived.wait()


@pytest.fixture
async def worker(tokenizer: HuggingFaceTokenizer) -> AsyncIterator[Worker]:
    made = Worker(tokenizer)
    yield made
    assert all(not made.directory.leases(entry.key) for entry in made.directory.entries)


@pytest.fixture
def frames() -> Callable[[bytes], list[Any]]:
    """Splits an event stream into its payloads; asserts the framing and the one end mark."""

    def split(body: bytes) -> list[Any]:
        parts = body.decode().split("\n\n")
        assert parts.pop() == ""
        assert all(part.startswith("data: ") and "\n" not in part for part in parts)
        payloads = [part.removeprefix("data: ") for part in parts]
        assert payloads.count("[DONE]") == 1
        assert payloads.pop() == "[DONE]"
        return [json.loads(payload) for payload in payloads]

    return split


@pytest.fixture
def typed() -> Callable[[bytes], list[Any]]:
    """Splits a stream of typed events into their payloads; asserts that names and types agree."""

    def split(body: bytes) -> list[Any]:
        parts = body.decode().split("\n\n")
        assert parts.pop() == ""
        payloads = []
        for part in parts:
            name, data = part.split("\n")
            payloads.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {payloads[-1]['type']}"
        return payloads

    return split


TOOL_TEMPLATE = "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}" + CHAT_TEMPLATE


@pytest.fixture
def calling() -> Callable[[Worker, str], FakeSession]:
    """Publishes "tiny", which writes calls as Hermes does, with an answer."""

    def serve(worker: Worker, text: str) -> FakeSession:
        session = worker.session(text)
        parts = TextParts(worker.tokenizer, ChatTemplate(TOOL_TEMPLATE), Hermes())
        worker.directory.publish([replace(worker.entry(session), text=parts)])
        return session

    return serve


@dataclass
class Server:
    """The application of `fake_server` under gunicorn's asgi worker."""

    client: openai.OpenAI
    port: int
    pipe: int  # where the model "endless" tells that a request has begun and that all have ended
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_for(self, word: bytes) -> None:
        readable, _, _ = select.select([self.pipe], [], [], LIMIT_SECONDS)
        assert readable, f"the server has not told {word!r}"
        assert os.read(self.pipe, len(word) + 1) == word + b"\n"


@contextlib.contextmanager
def gunicorn(directory: Path, *arguments: str, **options: Any) -> Iterator[Server]:
    """The server with gunicorn's `arguments` and `HttpOptions`; at the end it is terminated."""
    reader, writer = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = [
            *(
                sys.executable,
                "-m",
                "gunicorn",
                "--worker-class",
                "blink_server.connections.Worker",
            ),
            *("--bind", f"fd://{listener.fileno()}", "--asgi-disconnect-grace-period", "0"),
            *("--graceful-timeout", "1", "--no-control-socket", "--log-level", "warning"),
            *arguments,
            "fake_server:make_app()",
        ]
        paths = [str(Path(__file__).parent), *sys.path]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "BLINK_TEST_PIPE": str(writer),
            **HttpOptions(**options).environment(),
        }
        process = subprocess.Popen(
            command,
            env=environment,
            pass_fds=[listener.fileno(), writer],
            cwd=directory,
        )
    os.close(writer)
    try:
        url = f"http://127.0.0.1:{port}/v1"
        client = openai.OpenAI(base_url=url, api_key="secret", max_retries=0, timeout=LIMIT_SECONDS)
        with client:
            yield Server(client, port, reader, process)
    finally:
        process.terminate()
        process.wait(LIMIT_SECONDS)
        os.close(reader)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with gunicorn(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts a server of the test's own: see `gunicorn`."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(
            gunicorn(tmp_path, *arguments, **options)
        )
