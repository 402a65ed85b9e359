"""What the operator has set for the HTTP side of a worker."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Keys and limits.

    api_key_digests: `key_digest` of each key that may use /v1; empty lets everybody in.
    max_body_bytes: largest request body. max_n: most choices of one prompt.
    retry_seconds: how long a request that an endpoint never ran waits for the next endpoint.
    """

    api_key_digests: frozenset[bytes] = frozenset()
    max_body_bytes: int = 16 * 1024 * 1024
    max_n: int = 128
    retry_seconds: float = 5.0


def key_digest(key: str) -> bytes:
    """SHA-256 of an API key; keys themselves are not kept."""
    return hashlib.sha256(key.encode()).digest()
