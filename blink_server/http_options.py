"""The options of `serve` that concern HTTP alone, on their way to the workers."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from blink_server.api_keys import read_api_keys
from blink_server.errors import BlinkError
from blink_server.gunicorn_settings import (
    API_KEY_FILE_VARIABLE,
    CONTROL_SOCKET_VARIABLE,
    HTTP_OPTIONS_VARIABLE,
    METRICS_VARIABLE,
)
from blink_server.http.settings import ServerSettings
from blink_server.tls import CertificateFiles

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """What JSON can carry as it is. `cors_origins`: separated by commas; paths are absolute."""

    max_requests_per_key: int | None = None
    request_timeout_secs: float | None = None
    max_body_mib: int = 16
    max_connections: int = 1000
    head_timeout_secs: float = 15.0
    grammar_timeout_ms: int = 5000
    cors_origins: str = ""
    access_log: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    admin_key_file: str | None = None
    strict_readiness: bool = False
    otlp_endpoint: str | None = None
    default_model: str | None = None
    console: bool = True

    @property
    def scheme(self) -> str:
        """Of the server's URL."""
        return "http" if self.tls_certificate is None else "https"

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


def settings_from(environment: Mapping[str, str]) -> ServerSettings:
    """A worker's settings, from the environment that `serve` has set."""
    options = HttpOptions.of_environment(environment)
    key_file = environment.get(API_KEY_FILE_VARIABLE)
    control_socket = environment.get(CONTROL_SOCKET_VARIABLE)
    metrics = environment.get(METRICS_VARIABLE)
    return ServerSettings(
        api_key_file=None if key_file is None else Path(key_file),
        head_seconds=options.head_timeout_secs,
        grammar_seconds=options.grammar_timeout_ms / 1000,
        max_body_bytes=options.max_body_mib * 1024 * 1024,
        max_requests_per_key=options.max_requests_per_key,
        keys_directory=None if metrics is None else Path(metrics, "keys"),
        request_seconds=options.request_timeout_secs,
        cors_origins=tuple(filter(None, options.cors_origins.split(","))),
        access_log=options.access_log,
        admin_key_file=None if options.admin_key_file is None else Path(options.admin_key_file),
        control_socket=None if control_socket is None else Path(control_socket),
        strict_readiness=options.strict_readiness,
        otlp_endpoint=options.otlp_endpoint,
        default_model=options.default_model,
        console=options.console,
    )


_OPTIONS = [
    click.option(
        "--max-requests-per-key",
        type=click.IntRange(min=1),
        help="Maximum open requests per key.",
    ),
    click.option(
        "--request-timeout-secs",
        type=click.FloatRange(min=0, min_open=True),
        help="Time limit for one request.",
    ),
    click.option(
        "--max-body-mib",
        type=click.IntRange(1, 1024),
        default=16,
        show_default=True,
        help="Maximum size of a request body.",
    ),
    click.option(
        "--max-connections",
        type=click.IntRange(1, 1_000_000),
        default=1000,
        show_default=True,
        help="Maximum open connections per worker.",
    ),
    click.option(
        "--head-timeout-secs",
        type=click.FloatRange(min=0, min_open=True),
        default=15.0,
        show_default=True,
        help="Time limit for a new connection to send a request's head.",
    ),
    click.option(
        "--grammar-timeout-ms",
        type=click.IntRange(10, 600_000),
        default=5000,
        show_default=True,
        help="Time limit for compiling a schema or expression for structured outputs.",
    ),
    click.option(
        "--cors-origin",
        "cors_origins",
        multiple=True,
        help="Origin whose web pages may call the API; * means all. Repeatable.",
    ),
    click.option(
        "--access-log",
        help="File for one JSON line per request, without prompts; - is standard output.",
    ),
    click.option(
        "--admin-key-file",
        type=click.Path(path_type=Path),
        help="File of keys that may load and unload models over HTTP, one per line.",
    ),
    click.option(
        "--otlp-endpoint",
        envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
        help="Trace requests to the OpenTelemetry collector at this URL.",
    ),
    click.option(
        "--strict-readiness", is_flag=True, help="Report ready only while every model is ready."
    ),
    click.option(
        "--default-model",
        help="Model or NAME:VERSION for requests that name none. [default: the only model]",
    ),
    click.option(
        "--console/--no-console",
        default=True,
        show_default=True,
        help="Serve a page at /console that shows the server's activity.",
    ),
    click.option(
        "--tls-certificate",
        type=click.Path(path_type=Path),
        help="Certificate chain (PEM), to serve HTTPS.",
    ),
    click.option(
        "--tls-key", type=click.Path(path_type=Path), help="Private key of the certificate (PEM)."
    ),
]


def http_options(command: Command) -> Command:
    """Give a command these options, as one argument `http` of type `HttpOptions`."""

    def with_options(
        *,
        cors_origins: tuple[str, ...],
        access_log: str | None,
        tls_certificate: Path | None,
        tls_key: Path | None,
        max_requests_per_key: int | None,
        request_timeout_secs: float | None,
        max_body_mib: int,
        max_connections: int,
        head_timeout_secs: float,
        grammar_timeout_ms: int,
        admin_key_file: Path | None,
        strict_readiness: bool,
        otlp_endpoint: str | None,
        default_model: str | None,
        console: bool,
        **others: Any,
    ) -> Any:
        options = HttpOptions(
            max_requests_per_key=max_requests_per_key,
            request_timeout_secs=request_timeout_secs,
            max_body_mib=max_body_mib,
            max_connections=max_connections,
            head_timeout_secs=head_timeout_secs,
            grammar_timeout_ms=grammar_timeout_ms,
            cors_origins=",".join(cors_origins),
            access_log=_log_target(access_log),
            tls_certificate=_absolute(tls_certificate),
            tls_key=_absolute(tls_key),
            admin_key_file=_key_file(admin_key_file),
            strict_readiness=strict_readiness,
            otlp_endpoint=_with_exporter(otlp_endpoint),
            default_model=default_model,
            console=console,
        )
        if (tls_certificate is None) != (tls_key is None):
            raise BlinkError("--tls-certificate and --tls-key need each other")
        if options.certificate_files is not None:
            _check_certificate(options.certificate_files)
        return command(http=options, **others)

    with_options.__doc__ = command.__doc__
    with_options.__name__ = command.__name__
    # click's decorators collect options on the function they are applied to.
    with_options.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Any = with_options
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    result: Command = decorated
    return result


def _key_file(path: Path | None) -> str | None:
    if path is None:
        return None
    read_api_keys(path)
    return str(path.absolute())


def _with_exporter(endpoint: str | None) -> str | None:
    if endpoint is None:
        return None
    if not endpoint.startswith(("http://", "https://")):
        raise BlinkError(f"--otlp-endpoint {endpoint}: must be an http:// or https:// URL")
    try:
        found = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise BlinkError("--otlp-endpoint needs OpenTelemetry: pip install 'blink-server[otel]'")
    return endpoint


def _log_target(target: str | None) -> str | None:
    if target is None or target == "-":
        return target
    path = Path(target).absolute()
    try:
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise BlinkError(f"--access-log {target}: {error.strerror}") from None
    return str(path)


def _check_certificate(files: CertificateFiles) -> None:
    try:
        files.warn_if_refused()
    except BlinkError as error:
        raise BlinkError(f"--tls-certificate, --tls-key: {error}") from None


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
