"""What a frontend and a host know each other by: a certificate and a token, made in one go.

<directory>/key.pem            the certificate's private key
<directory>/certificate.pem    the door's certificate, signed by itself
<directory>/token              for frontends: the token, and the certificate's fingerprint
"""

from __future__ import annotations

import hashlib
import secrets
import ssl
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from blink_server.api_keys import read_api_keys
from blink_server.errors import BlinkError
from blink_server.tls import CertificateFiles

_FINGERPRINT = "sha256:"
_DAYS = 3650


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a token file says."""

    token: str = field(repr=False)
    fingerprint: str  # of the door's certificate: "sha256:" and hex digits


def read_token_file(path: Path) -> Credentials:
    """Raises BlinkError naming the file and what is wrong with it."""
    lines = read_api_keys(path)
    pins = [line for line in lines if line.startswith(_FINGERPRINT)]
    tokens = [line for line in lines if not line.startswith(_FINGERPRINT)]
    if len(pins) != 1 or len(tokens) != 1:
        raise BlinkError(
            f"token file {path}: must hold a token and a line {_FINGERPRINT}..., "
            "as the host wrote them"
        )
    return Credentials(tokens[0], pins[0])


def open_key_directory(directory: Path) -> Credentials:
    """The door's credentials; they are made, by openssl, where the directory is empty or new.

    Raises BlinkError.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    token_file, certificate = directory / "token", directory / "certificate.pem"
    if not token_file.exists():
        _make_certificate(directory / "key.pem", certificate)
        pem = certificate.read_text(encoding="ascii")
        fingerprint = fingerprint_of(ssl.PEM_cert_to_DER_cert(pem))
        token_file.touch(mode=0o600)
        token_file.write_text(
            "# for `blink-server frontend --token-file`: a token, and the host's certificate\n"
            f"{secrets.token_urlsafe(32)}\n{fingerprint}\n",
            encoding="ascii",
        )
    return read_token_file(token_file)


def fingerprint_of(certificate: bytes) -> str:
    """Of a certificate in DER."""
    return _FINGERPRINT + hashlib.sha256(certificate).hexdigest()


def door_context(directory: Path) -> ssl.SSLContext:
    """The door's side of TLS. Raises BlinkError."""
    context = CertificateFiles(directory / "certificate.pem", directory / "key.pem").context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def frontend_context() -> ssl.SSLContext:
    """A frontend's side: whom it reaches is told by the fingerprint alone (`check_pin`)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def check_pin(connection: ssl.SSLObject, credentials: Credentials) -> None:
    """Raises BlinkError unless the other side has the pinned certificate's key."""
    found = fingerprint_of(connection.getpeercert(binary_form=True) or b"")
    if not secrets.compare_digest(found, credentials.fingerprint):
        raise BlinkError(f"the host's certificate is {found}, not {credentials.fingerprint}")


def _make_certificate(key: Path, certificate: Path) -> None:
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
        *("-nodes", "-days", str(_DAYS), "-subj", "/CN=blink-server"),
        *("-keyout", str(key), "-out", str(certificate)),
    ]
    key.touch(mode=0o600)
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise BlinkError("no openssl here to make a certificate with: install it") from None
    except subprocess.CalledProcessError as error:
        raise BlinkError(f"openssl made no certificate: {error.stderr.strip()}") from None
