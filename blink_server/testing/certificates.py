"""Certificates for tests, made by openssl: signed by themselves, for 127.0.0.1."""

from __future__ import annotations

import subprocess
from pathlib import Path

from blink_server.tls import CertificateFiles


def make_certificate(directory: Path, name: str, *, days: int = 1) -> CertificateFiles:
    """`name`.pem and `name`.key; with `days` 0 it has expired by now."""
    files = CertificateFiles(directory / f"{name}.pem", directory / f"{name}.key")
    request = directory / f"{name}.csr"
    _openssl(
        *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-subj", f"/CN={name}", "-keyout", str(files.key), "-out", str(request)),
    )
    extensions = directory / f"{name}.extensions"
    extensions.write_text("subjectAltName=IP:127.0.0.1\n")
    _openssl(
        *("x509", "-req", "-in", str(request), "-signkey", str(files.key), "-days", str(days)),
        *("-extfile", str(extensions), "-out", str(files.certificate)),
    )
    return files


def protect_key(files: CertificateFiles) -> None:
    """Put a passphrase on the key."""
    protected = files.key.with_suffix(".protected")
    _openssl(
        *("pkey", "-in", str(files.key), "-aes256", "-passout", "pass:secret"),
        *("-out", str(protected)),
    )
    protected.replace(files.key)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, text=True)
