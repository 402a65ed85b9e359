"""API keys: who may use the routes that reach a model, and how much at a time.

Everything but /health, /version, /metrics, the description of the API and the console's page needs
a key where keys are set: probes and scrapers carry no keys, and these routes tell nothing of
anybody's text. What the console shows comes through a route of its own, which does need one.
"""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

import falcon.asgi

from blink_server.api_keys import read_api_keys
from blink_server.errors import BlinkError
from blink_server.file_signature import file_signature
from blink_server.http.errors import Forbidden, TooManyRequests, Unauthorized
from blink_server.http.key_places import KeyPlaces
from blink_server.http.scope import cleanup_of, record_of
from blink_server.http.settings import ServerSettings, key_digest

logger = logging.getLogger(__name__)

_OPEN = ("/health", "/version", "/metrics", "/openapi.json", "/docs", "/v2/health", "/console")
_CLOSED = ("/console/events",)  # though they lie below an open one
_ADMIN = ("/v2/repository/models",)  # ask for a key of their own


class KeyRing:
    """The digests of the keys that may be used now; a key file is read again when it changes."""

    def __init__(self, digests: frozenset[bytes], file: Path | None = None) -> None:
        """Raises `BlinkError` where the file cannot be used."""
        self._given = digests
        self._file = file
        self._from_file: frozenset[bytes] = frozenset()
        self._seen: tuple[int, ...] | None = None
        if file is not None:
            self._seen = file_signature(file)
            self._from_file = _read(file)

    @property
    def digests(self) -> frozenset[bytes]:
        """All of them. A changed file that cannot be used leaves the keys as they were."""
        if self._file is not None and (seen := file_signature(self._file)) != self._seen:
            self._seen = seen
            try:
                self._from_file = _read(self._file)
                logger.info("API key file %s: read again", self._file)
            except BlinkError as error:
                logger.error("%s; the keys stay as they were", error)
        return self._given | self._from_file

    @property
    def open(self) -> bool:
        """Whether everybody is let in."""
        return not self._given and self._file is None


def _read(file: Path) -> frozenset[bytes]:
    return frozenset(map(key_digest, read_api_keys(file)))


class ApiKeys:
    """Falcon middleware that asks for `Authorization: Bearer <key>`, or `x-api-key: <key>`."""

    def __init__(self, settings: ServerSettings) -> None:
        """Raises `BlinkError` where the key file cannot be used, OSError the keys' directory."""
        self._ring = KeyRing(settings.api_key_digests, settings.api_key_file)
        most = settings.http.max_requests_per_key
        self._open = ("/",) if settings.http.console else ()  # which leads to the console
        self._places = None if most is None else KeyPlaces(settings.keys_directory, most)

    async def process_request(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Raises `Unauthorized`, `TooManyRequests` before anything of the body is read."""
        # A browser asks what it may do before it has a key to show.
        if self._ring.open or req.method == "OPTIONS" or self._is_open(req.path):
            return
        digest = self._find(_given_key(req, "an API key"))
        record_of(req).key = digest.hex()[:12]
        if req.method == "POST" and self._places is not None:
            self._take_place(req, digest, self._places)

    def _find(self, key: str) -> bytes:
        digest = key_digest(key)
        # Every digest is compared, in constant time, so that timing tells nothing.
        if not sum(hmac.compare_digest(digest, known) for known in self._ring.digests):
            raise Unauthorized("the API key is not valid")
        return digest

    def _is_open(self, path: str) -> bool:
        if path in _CLOSED:
            return False
        below = any(path == route or path.startswith(f"{route}/") for route in (*_OPEN, *_ADMIN))
        return below or path in self._open

    def _take_place(self, req: falcon.asgi.Request, digest: bytes, places: KeyPlaces) -> None:
        place = places.take(digest)
        if place is None:
            raise TooManyRequests(
                f"this key has {places.most} requests in progress, the most it may have"
            )
        cleanup_of(req).callback(places.give, digest, place)


def _given_key(req: falcon.asgi.Request, what: str) -> str:
    """Raises `Unauthorized` where there is none; `what` is the key that is needed."""
    scheme, _, key = (req.get_header("Authorization") or "").partition(" ")
    # Anthropic's clients send the key in a header of its own.
    key = key.strip() if scheme.lower() == "bearer" else (req.get_header("X-Api-Key") or "").strip()
    if not key:
        raise Unauthorized(f"{what} is needed: Authorization: Bearer <key>")
    return key


class AdminKeys:
    """The keys that may load and unload models."""

    def __init__(self, settings: ServerSettings) -> None:
        """Raises `BlinkError` where the key file cannot be used."""
        file = settings.http.admin_key_file
        self._ring = KeyRing(frozenset(), None if file is None else Path(file))

    def check(self, req: falcon.asgi.Request) -> None:
        """Raises `Forbidden` where there are no such keys, `Unauthorized` without one of them."""
        if self._ring.open:
            raise Forbidden(
                "this needs an admin key, and the server has none: start it with --admin-key-file, "
                "or use `blink-server models` on its machine"
            )
        digest = key_digest(_given_key(req, "an admin key, of the server's --admin-key-file,"))
        if not sum(hmac.compare_digest(digest, known) for known in self._ring.digests):
            raise Unauthorized("the admin key is not valid")
