"""What the operator has set for the HTTP side of a worker."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from blink_server.gunicorn_settings import (
    API_KEY_FILE_VARIABLE,
    CONTROL_SOCKET_VARIABLE,
    METRICS_VARIABLE,
)
from blink_server.http_options import HttpOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The options given, and what a worker has from `serve` beside them.

    api_key_digests: `key_digest` of each key that may be used; api_key_file: a file of further
    keys, read again when it changes. Without both everybody is let in.
    keys_directory: of all workers whose requests of one key are counted together; without one each
    worker counts its own. control_socket: the provisioner's.
    body_seconds: how long a request's body may take to arrive. max_n: most choices of one prompt.
    retry_seconds: how long a request that an endpoint never ran waits for the next endpoint.
    awaited_seconds: how long a request waits for a version for which the one before made way.
    """

    http: HttpOptions = field(default_factory=HttpOptions)
    api_key_digests: frozenset[bytes] = frozenset()
    api_key_file: Path | None = None
    keys_directory: Path | None = None
    control_socket: Path | None = None
    body_seconds: float = 30.0
    max_n: int = 128
    retry_seconds: float = 5.0
    awaited_seconds: float = 60.0

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> ServerSettings:
        """A worker's, from the environment that `serve` has set."""
        key_file = environment.get(API_KEY_FILE_VARIABLE)
        control_socket = environment.get(CONTROL_SOCKET_VARIABLE)
        metrics = environment.get(METRICS_VARIABLE)
        return cls(
            http=HttpOptions.of_environment(environment),
            api_key_file=None if key_file is None else Path(key_file),
            keys_directory=None if metrics is None else Path(metrics, "keys"),
            control_socket=None if control_socket is None else Path(control_socket),
        )


def key_digest(key: str) -> bytes:
    """SHA-256 of an API key; keys themselves are not kept."""
    return hashlib.sha256(key.encode()).digest()
