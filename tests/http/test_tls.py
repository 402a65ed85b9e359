"""HTTPS against real workers: a certificate that breaks ends none of them that serves, and no
request is ever answered in the clear."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from blink_server.gunicorn_settings import API_KEY_FILE_VARIABLE, STARTED_AGAIN_VARIABLE
from blink_server.testing.certificates import make_certificate
from blink_server.testing.eventually import eventually
from blink_server.tls import CertificateFiles

LIMIT_SECONDS = 30  # for what should take milliseconds


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return make_certificate(tmp_path, "server")


def start(start_server: Any, files: CertificateFiles, *arguments: str) -> Any:
    return start_server(*arguments, tls_certificate=str(files.certificate), tls_key=str(files.key))


async def https(server: Any, context: ssl.SSLContext) -> int:
    """The status of a request on a new connection; 0 where none is served."""
    url = f"https://127.0.0.1:{server.port}/health/live"
    async with httpx.AsyncClient(verify=context, timeout=LIMIT_SECONDS) as client:
        try:
            return (await client.get(url)).status_code
        except httpx.TransportError:
            return 0


def in_the_clear(server: Any) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), LIMIT_SECONDS)
    connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    return connection


def answered(connection: socket.socket) -> bool:
    """Whether it gets an answer, rather than TLS's alert or its end."""
    with connection:
        try:
            return b"HTTP/" in connection.recv(65536)
        except ConnectionResetError:
            return False


def workers(server: Any) -> list[int]:
    process = server.process.pid
    return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


async def test_requests_in_the_clear_are_not_answered(
    start_server: Any, files: CertificateFiles
) -> None:
    server = start(start_server, files)
    context = ssl.create_default_context(cafile=files.certificate)
    assert await https(server, context) == 200
    assert not answered(in_the_clear(server))


class Log:
    """What the server writes."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self._written = ""

    async def has(self, text: str, *, times: int) -> None:
        """Wait until `text` has been written so often."""

        async def count() -> int:
            self._written += self._capfd.readouterr().err
            return self._written.count(text)

        await eventually(count, lambda found: found >= times)


TWO = ("--workers=2", "--log-level=info")
SERVES = "ASGI server listening"
CANNOT = "a new worker cannot start"


async def test_a_broken_certificate_ends_no_worker_but_new_ones(
    start_server: Any, files: CertificateFiles, capfd: pytest.CaptureFixture[str]
) -> None:
    server = start(start_server, files, *TWO)
    context = ssl.create_default_context(cafile=files.certificate)
    log = Log(capfd)
    await log.has(SERVES, times=2)
    good = files.certificate.read_bytes()
    files.certificate.write_bytes(b"")
    first, second = workers(server)
    os.kill(first, signal.SIGKILL)
    await log.has(f"{CANNOT}: TLS certificate {files.certificate}: holds no certificate", times=2)
    assert server.process.poll() is None
    assert await https(server, context) == 200
    os.kill(second, signal.SIGKILL)
    waiting = in_the_clear(server)
    files.certificate.write_bytes(good)
    assert not answered(waiting)
    assert await https(server, context) == 200


async def test_a_broken_key_file_ends_no_worker_but_new_ones(
    start_server: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    monkeypatch.setenv(API_KEY_FILE_VARIABLE, str(keys))
    server = start_server(*TWO)
    log = Log(capfd)
    await log.has(SERVES, times=2)
    keys.unlink()
    os.kill(workers(server)[0], signal.SIGKILL)
    await log.has(f"{CANNOT}: API key file {keys}: No such file", times=1)
    assert server.process.poll() is None
    assert len(server.client.models.list().data) > 1


async def test_a_gunicorn_started_again_waits_for_a_certificate_that_is_broken(
    start_server: Any,
    files: CertificateFiles,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(STARTED_AGAIN_VARIABLE, "1")
    context = ssl.create_default_context(cafile=files.certificate)
    good = files.certificate.read_bytes()
    files.certificate.write_bytes(b"")
    server = start(start_server, files, *TWO)
    await Log(capfd).has(f"{CANNOT}: TLS certificate {files.certificate}", times=3)
    files.certificate.write_bytes(good)
    assert await https(server, context) == 200
    assert server.process.poll() is None


FAILS_LATER = """
def post_worker_init(worker):
    async def fails(scope, receive, send):
        raise RuntimeError("no luck")

    if worker.age > 1:
        worker.asgi = fails
"""


async def test_a_worker_whose_application_cannot_start_leaves_the_reason_to_gunicorn(
    start_server: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "settings.py"
    settings.write_text(FAILS_LATER)
    options = ("--log-level=info", "--asgi-lifespan=on", f"--config={settings}")
    server = start_server(*options)
    log = Log(capfd)
    await log.has(SERVES, times=1)
    os.kill(workers(server)[0], signal.SIGKILL)
    await log.has(f"{CANNOT}; the reason is above", times=1)
    assert server.process.poll() is None


def test_first_workers_that_cannot_start_end_the_server(
    start_server: Any, files: CertificateFiles
) -> None:
    files.certificate.write_bytes(b"")
    assert start(start_server, files).process.wait(LIMIT_SECONDS) == 3
