"""API keys: who may use the routes that reach a model.

Everything under /v1 needs a key where keys are set. /health, /version and /metrics stay open:
probes and scrapers carry no keys, and these routes tell nothing of anybody's text.
"""

from __future__ import annotations

import hmac

import falcon.asgi

from blink_server.http.errors import Unauthorized
from blink_server.http.settings import key_digest

_OPEN = ("/health", "/version", "/metrics")


class ApiKeys:
    """Falcon middleware that asks for `Authorization: Bearer <key>`."""

    def __init__(self, digests: frozenset[bytes]) -> None:
        """`digests`: SHA-256 of each key; empty lets everybody in."""
        self._digests = digests

    async def process_request(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Raises `Unauthorized` before anything of the body is read."""
        if not self._digests or _is_open(req.path):
            return
        scheme, _, key = (req.get_header("Authorization") or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthorized("an API key is needed: Authorization: Bearer <key>")
        digest = key_digest(key.strip())
        # Every digest is compared, in constant time, so that timing tells nothing.
        if not sum(hmac.compare_digest(digest, known) for known in self._digests):
            raise Unauthorized("the API key is not valid")


def _is_open(path: str) -> bool:
    return any(path == route or path.startswith(f"{route}/") for route in _OPEN)
