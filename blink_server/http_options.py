"""The options of `serve` that concern HTTP alone, on their way to the workers."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from blink_server.api_keys import read_api_keys
from blink_server.errors import BlinkError
from blink_server.gunicorn_settings import HTTP_OPTIONS_VARIABLE
from blink_server.option_group import AbsolutePath, option, option_group
from blink_server.tls import CertificateFiles


def _joined(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> str:
    return ",".join(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """What JSON can carry as it is. `cors_origins`: separated by commas; paths are absolute."""

    max_requests_per_key: int | None = option(
        "--max-requests-per-key",
        type=click.IntRange(min=1),
        help="Maximum open requests per key.",
    )
    request_timeout_secs: float | None = option(
        "--request-timeout-secs",
        type=click.FloatRange(min=0, min_open=True),
        help="Time limit for one request.",
    )
    max_body_mib: int = option(
        "--max-body-mib",
        type=click.IntRange(1, 1024),
        default=16,
        help="Maximum size of a request body.",
    )
    max_connections: int = option(
        "--max-connections",
        type=click.IntRange(1, 1_000_000),
        default=1000,
        help="Maximum open connections per worker.",
    )
    head_timeout_secs: float = option(
        "--head-timeout-secs",
        type=click.FloatRange(min=0, min_open=True),
        default=15.0,
        help="Time limit for a new connection to send a request's head.",
    )
    grammar_timeout_ms: int = option(
        "--grammar-timeout-ms",
        type=click.IntRange(10, 600_000),
        default=5000,
        help="Time limit for compiling a schema or expression for structured outputs.",
    )
    cors_origins: str = option(
        "--cors-origin",
        multiple=True,
        callback=_joined,
        default="",
        help="Origin whose web pages may call the API; * means all. Repeatable.",
    )
    access_log: str | None = option(
        "--access-log",
        type=AbsolutePath(allow_dash=True),
        metavar="TEXT",
        help="File for one JSON line per request, without prompts; - is standard output.",
    )
    admin_key_file: str | None = option(
        "--admin-key-file",
        type=AbsolutePath(),
        help="File of keys that may load and unload models over HTTP, one per line.",
    )
    otlp_endpoint: str | None = option(
        "--otlp-endpoint",
        envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
        help="Trace requests to the OpenTelemetry collector at this URL.",
    )
    strict_readiness: bool = option(
        "--strict-readiness",
        is_flag=True,
        default=False,
        help="Report ready only while every model is ready.",
    )
    default_model: str | None = option(
        "--default-model",
        help="Model or NAME:VERSION for requests that name none. [default: the only model]",
    )
    console: bool = option(
        "--console/--no-console",
        default=True,
        help="Serve a page at /console that shows the server's activity.",
    )
    tls_certificate: str | None = option(
        "--tls-certificate", type=AbsolutePath(), help="Certificate chain (PEM), to serve HTTPS."
    )
    tls_key: str | None = option(
        "--tls-key", type=AbsolutePath(), help="Private key of the certificate (PEM)."
    )

    @property
    def scheme(self) -> str:
        """Of the server's URL."""
        return "http" if self.tls_certificate is None else "https"

    @property
    def max_body_bytes(self) -> int:
        """Of a request."""
        return self.max_body_mib * 1024 * 1024

    @property
    def origins(self) -> list[str]:
        """Of the web pages that may call."""
        return list(filter(None, self.cors_origins.split(",")))

    @property
    def certificate_files(self) -> CertificateFiles | None:
        """None: TLS is not for this server."""
        if self.tls_certificate is None:
            return None
        assert self.tls_key is not None
        return CertificateFiles(Path(self.tls_certificate), Path(self.tls_key))

    def gunicorn_arguments(self) -> list[str]:
        """What gunicorn must be told of them."""
        return [f"--worker-connections={self.max_connections}"]

    def environment(self) -> dict[str, str]:
        """What a worker must be told of them."""
        return {HTTP_OPTIONS_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> HttpOptions:
        """What a worker has been told."""
        return cls(**json.loads(environment.get(HTTP_OPTIONS_VARIABLE, "{}")))

    def checked(self) -> HttpOptions:
        """These. Raises BlinkError naming what cannot be used; the access log is there then."""
        if self.admin_key_file is not None:
            read_api_keys(Path(self.admin_key_file))
        _check_log(self.access_log)
        _check_exporter(self.otlp_endpoint)
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise BlinkError("--tls-certificate and --tls-key need each other")
        if self.certificate_files is not None:
            _check_certificate(self.certificate_files)
        return self


http_options: Callable[[Callable[..., Any]], Callable[..., Any]] = option_group(
    HttpOptions, "http", HttpOptions.checked
)
"""Gives a command these options, as one argument `http`."""


def _check_exporter(endpoint: str | None) -> None:
    if endpoint is None:
        return
    if not endpoint.startswith(("http://", "https://")):
        raise BlinkError(f"--otlp-endpoint {endpoint}: must be an http:// or https:// URL")
    try:
        found = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise BlinkError("--otlp-endpoint needs OpenTelemetry: pip install 'blink-server[otel]'")


def _check_log(target: str | None) -> None:
    if target is None or target == "-":
        return
    try:
        Path(target).open("a", encoding="utf-8").close()
    except OSError as error:
        raise BlinkError(f"--access-log {target}: {error.strerror}") from None


def _check_certificate(files: CertificateFiles) -> None:
    try:
        files.warn_if_refused()
    except BlinkError as error:
        raise BlinkError(f"--tls-certificate, --tls-key: {error}") from None
