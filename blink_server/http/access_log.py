"""The access log: one JSON object a line and request, written when the request has ended."""

from __future__ import annotations

import json
import logging
import logging.handlers
import re
import sys
import time
import uuid
from dataclasses import asdict
from datetime import UTC, datetime

import falcon.asgi

from blink_server.http.scope import RequestRecord, cleanup_of, record_of
from blink_server.logs import current_request_id

_GOOD_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestIds:
    """Falcon middleware: gives every request an id, or takes its client's, and tells it back."""

    async def process_request(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Takes `X-Request-Id` where it is fit to be logged and sent back."""
        given = req.get_header("X-Request-Id") or ""
        request_id = given if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex
        record_of(req).request_id = request_id
        current_request_id.set(request_id)

    async def process_response(
        self,
        req: falcon.asgi.Request,
        resp: falcon.asgi.Response,
        resource: object,
        req_succeeded: bool,
    ) -> None:
        """Sets `X-Request-Id`."""
        record = record_of(req)
        record.status = resp.status_code
        resp.set_header("X-Request-Id", record.request_id)


class AccessLog:
    """Falcon middleware: writes each request's `RequestRecord`, and times, to a log of lines."""

    def __init__(self, target: str) -> None:
        """`target`: a file, opened again where it has been moved away; "-" is standard output."""
        if target == "-":
            self._handler: logging.Handler = logging.StreamHandler(sys.stdout)
        else:
            self._handler = logging.handlers.WatchedFileHandler(target, encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(message)s"))

    async def process_request(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Sees to it that the request is logged however it ends."""
        cleanup_of(req).callback(
            self._write, record_of(req), req.method, req.path, req.remote_addr, time.monotonic()
        )

    def _write(
        self, record: RequestRecord, method: str, path: str, client: str, begun: float
    ) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {
            "time": now,
            "client": client,
            "method": method,
            "path": path,
            "seconds": round(time.monotonic() - begun, 6),
            **asdict(record),
        }
        line = logging.makeLogRecord({"msg": "%s", "args": (json.dumps(entry),)})
        self._handler.handle(line)
