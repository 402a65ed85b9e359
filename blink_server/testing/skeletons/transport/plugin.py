"""The transport `my_plugin`: a ring in this machine's memory whose socket is named by a file.

Replace it by one to a memory that shm cannot reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from blink_persistent.frontend import shm
from blink_server.backend import Endpoint, ModelVersion, Session
from blink_server.errors import Unavailable
from blink_server.hookspecs import Connect, hookimpl


async def connect(version: ModelVersion, endpoint: Endpoint) -> Session:
    file = Path(endpoint.address["file"])
    try:
        path = (await asyncio.to_thread(file.read_text, encoding="utf-8")).strip()
    except OSError as error:
        raise Unavailable(f"{version.key}: {error.strerror}") from None
    return await shm.connect(version, Endpoint("shm", {"socket": path}))


@hookimpl
def blink_transports() -> Mapping[str, Connect]:
    return {"my_plugin": connect}
