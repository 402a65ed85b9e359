"""Fetching from a hub: the real client library against a local server that speaks its protocol."""

from __future__ import annotations

import hashlib
import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from blink_server.errors import InvalidModel
from blink_server.importers.failure import ModelImportError
from blink_server.importers.hf import open_huggingface
from blink_server.importers.hub import fetch, is_hub_id
from blink_server.testing.tiny_huggingface import write_tiny_huggingface

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """Serves one model, "org/tiny", at the branch "main" and the tag "v1"; counts what is sent."""

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.directory = directory
        self.sent: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        files = sorted(file.name for file in self.server.directory.iterdir())
        model = "/api/models/org/tiny"
        if path in {f"{model}/revision/{name}" for name in ("main", "v1", COMMIT)} | {model}:
            siblings = [{"rfilename": name} for name in files]
            self._send(200, json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": siblings}))
        elif path == f"{model}/tree/{COMMIT}":
            self._send(200, json.dumps([self._entry(name) for name in files]))
        elif path.startswith(f"/org/tiny/resolve/{COMMIT}/") and path.split("/")[-1] in files:
            self._send_file(path.split("/")[-1], with_body)
        else:
            kind = "RevisionNotFound" if path.startswith(model) else "RepoNotFound"
            self._send(404, "{}", {"X-Error-Code": kind, "X-Error-Message": f"no {path}"})

    def _entry(self, name: str) -> dict[str, object]:
        data = (self.server.directory / name).read_bytes()
        oid = hashlib.sha1(data).hexdigest()
        return {"type": "file", "path": name, "size": len(data), "oid": oid}

    def _send_file(self, name: str, with_body: bool) -> None:
        data = (self.server.directory / name).read_bytes()
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
        if with_body:
            self.server.sent.append(name)
        self._send(200, data if with_body else b"", headers, length=len(data))

    def _send(
        self,
        status: int,
        body: str | bytes,
        headers: dict[str, str] | None = None,
        *,
        length: int | None = None,
    ) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub(write_tiny_huggingface(tmp_path / "served", "qwen2", shards=2).directory)
    (server.directory / "consolidated.safetensors").write_bytes(b"the same weights again")
    (server.directory / "README.md").write_text("not needed")
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    for name in ("HF_HUB_CACHE", "HF_XET_CACHE"):
        monkeypatch.setattr(huggingface_hub.constants, name, str(tmp_path / name))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("revision", [None, "v1", COMMIT])
def test_a_model_comes_whole_and_without_what_is_not_needed(hub: Hub, revision: str | None) -> None:
    directory, commit = fetch("org/tiny", revision)
    assert commit == COMMIT
    assert not {"consolidated.safetensors", "README.md"} & set(hub.sent)
    checkpoint = open_huggingface(directory)
    served = open_huggingface(hub.directory)
    assert checkpoint.architecture == served.architecture
    for name in served.tensor_names():
        assert (checkpoint.tensor(name) == served.tensor(name)).all()


def test_what_is_in_the_cache_is_not_fetched_again(hub: Hub) -> None:
    fetch("org/tiny")
    assert len(hub.sent) == len(set(hub.sent)) > 4
    hub.sent.clear()
    fetch("org/tiny")
    assert hub.sent == []


def test_another_architecture_is_refused_before_its_weights_are_fetched(hub: Hub) -> None:
    config = hub.directory / "config.json"
    config.write_text(config.read_text().replace('"qwen2"', '"gemma2"'))
    with pytest.raises(InvalidModel, match="model_type: is 'gemma2'"):
        fetch("org/tiny")
    assert "config.json" in hub.sent
    assert not any(name.endswith(".safetensors") for name in hub.sent)


@pytest.mark.parametrize(("hub_id", "revision"), [("org/other", None), ("org/tiny", "v9")])
def test_what_the_hub_has_not_is_named_in_one_line(
    hub: Hub, hub_id: str, revision: str | None
) -> None:
    with pytest.raises(ModelImportError, match=rf"^{hub_id} could not be fetched: .+") as failed:
        fetch(hub_id, revision)
    assert "\n" not in str(failed.value)


def test_a_hub_that_cannot_be_reached_is_told(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ModelImportError, match="org/tiny could not be fetched"):
        fetch("org/tiny")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelImportError, match=r"needs the extra `hub`: pip install 'blink-serv"):
        fetch("org/tiny")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", True),
        ("org/name.v1_2", True),
        ("name", False),
        ("a/b/c", False),
        ("./name", False),
        ("../name", False),
        ("/name", False),
        ("org/", False),
        ("org/na me", False),
    ],
)
def test_ids_are_told_from_paths(text: str, expected: bool) -> None:
    assert is_hub_id(text) is expected
