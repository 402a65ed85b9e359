"""What the operator has set for the HTTP side of a worker."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Keys, limits, logs.

    api_key_digests: `key_digest` of each key that may be used; api_key_file: a file of further
    keys, read again when it changes. Without both everybody is let in.
    head_seconds: how long a new connection may take until its first request's head is complete.
    max_body_bytes, body_seconds: the largest request body, and how long it may take to arrive.
    max_n: most choices of one prompt. grammar_seconds: how long a schema or an expression that an
    answer must fulfil may take to compile. max_requests_per_key: most requests in progress for one
    key, over all workers that have this keys_directory, or in this worker alone without one.
    request_seconds: longest time from a request to its end.
    retry_seconds: how long a request that an endpoint never ran waits for the next endpoint.
    awaited_seconds: how long a request waits for a version for which the one before made way.
    cors_origins: web pages of which origins may call ("*": all); none by default.
    access_log: file of JSON lines, "-" for standard output.
    admin_key_file: keys that may load and unload models. control_socket: the provisioner's.
    strict_readiness: the server is ready only while every model is.
    otlp_endpoint: base URL of the collector that traces go to; without it nothing is traced.
    console: whether /console is served.
    default_model: what requests get that name no model; without it the only model, if there is one.
    """

    api_key_digests: frozenset[bytes] = frozenset()
    api_key_file: Path | None = None
    head_seconds: float = 15.0
    max_body_bytes: int = 16 * 1024 * 1024
    body_seconds: float = 30.0
    max_n: int = 128
    grammar_seconds: float = 5.0
    max_requests_per_key: int | None = None
    keys_directory: Path | None = None
    request_seconds: float | None = None
    retry_seconds: float = 5.0
    awaited_seconds: float = 60.0
    cors_origins: tuple[str, ...] = ()
    access_log: str | None = None
    admin_key_file: Path | None = None
    control_socket: Path | None = None
    strict_readiness: bool = False
    default_model: str | None = None
    otlp_endpoint: str | None = None
    console: bool = True


def key_digest(key: str) -> bytes:
    """SHA-256 of an API key; keys themselves are not kept."""
    return hashlib.sha256(key.encode()).digest()
