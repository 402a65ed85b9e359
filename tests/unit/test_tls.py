"""Certificates as files: what cannot be used is named, what changes is read again."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from blink_server.errors import BlinkError
from blink_server.testing.certificates import make_certificate, protect_key
from blink_server.tls import CertificateFiles, FollowedCertificate


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return make_certificate(tmp_path, "one")


def empty_certificate(files: CertificateFiles) -> None:
    files.certificate.write_bytes(b"")


def key_for_certificate(files: CertificateFiles) -> None:
    shutil.copy(files.key, files.certificate)


def no_certificate(files: CertificateFiles) -> None:
    files.certificate.unlink()


def folder_for_certificate(files: CertificateFiles) -> None:
    files.certificate.unlink()
    files.certificate.mkdir()


def empty_key(files: CertificateFiles) -> None:
    files.key.write_bytes(b"")


def no_key(files: CertificateFiles) -> None:
    files.key.unlink()


def other_key(files: CertificateFiles) -> None:
    shutil.copy(make_certificate(files.key.parent, "other").key, files.key)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (empty_certificate, r"TLS certificate .*one\.pem: holds no certificate"),
        (key_for_certificate, r"TLS certificate .*one\.pem: holds no certificate"),
        (no_certificate, r"TLS certificate .*one\.pem: No such file"),
        (folder_for_certificate, r"TLS certificate .*one\.pem: Is a directory"),
        (empty_key, r"TLS key .*one\.key: is no private key"),
        (no_key, r"TLS key .*one\.key: No such file"),
        (other_key, r"TLS key .*one\.key: is not the key of the certificate .*one\.pem"),
        (protect_key, r"TLS key .*one\.key: is protected by a passphrase"),
    ],
)
def test_what_cannot_be_used_is_named(
    files: CertificateFiles, spoil: Callable[[CertificateFiles], None], message: str
) -> None:
    files.context()
    spoil(files)
    with pytest.raises(BlinkError, match=message):
        files.context()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read every file")
def test_what_may_not_be_read_is_named(files: CertificateFiles) -> None:
    files.key.chmod(0o000)
    with pytest.raises(BlinkError, match=r"one\.key: Permission denied"):
        files.context()
    files.certificate.chmod(0o000)
    with pytest.raises(BlinkError, match=r"one\.pem: Permission denied"):
        files.context()


@pytest.mark.parametrize(("days", "warnings"), [(1, 0), (0, 1)])
def test_an_expired_certificate_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, days: int, warnings: int
) -> None:
    make_certificate(tmp_path, "one", days=days).warn_if_refused()
    assert len(caplog.messages) == warnings
    assert all(
        "one.pem: clients will refuse it: certificate has expired" in m for m in caplog.messages
    )


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_new_connections_get_the_certificate_as_it_is_by_then(
    files: CertificateFiles,
    caplog: pytest.LogCaptureFixture,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    new = make_certificate(files.key.parent, "new")
    first = CertificateFiles(*(shutil.copy(f, f"{f}.1") for f in (files.certificate, files.key)))

    async def served(port: int, trusted: CertificateFiles) -> bool:
        context = ssl.create_default_context(cafile=trusted.certificate)
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        except ssl.SSLCertVerificationError:
            return False
        writer.close()
        return True

    async def renew() -> None:
        server = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, "127.0.0.1", 0, ssl=FollowedCertificate(files).context
        )
        port = server.sockets[0].getsockname()[1]
        assert await served(port, first)
        shutil.copy(new.certificate, files.certificate)  # its key is still the old one
        assert await served(port, first)
        assert await served(port, first)
        [record] = caplog.records
        assert record.levelno == logging.ERROR
        assert "is not the key of" in record.message
        shutil.copy(new.key, files.key)
        assert await served(port, new)
        assert not await served(port, first)
        server.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(renew())
