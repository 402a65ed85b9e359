"""Questions to a running server over its control channel, for workers and for commands."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from blink_server.errors import Unavailable
from blink_server.message_codec import MAX_LINE, ProtocolError, decode, encode
from blink_server.messages import TO_CLIENT, Answer, Ask, RegisterClient


async def ask(
    control_socket: Path,
    action: Literal["index", "load", "unload", "log_level"],
    *,
    model: str = "",
    config: Mapping[str, Any] | None = None,
    force: bool = False,
    usage: bool = False,
    level: str = "",
) -> Answer:
    """Ask one thing and wait for the answer, which for a load comes when it has ended.

    Raises Unavailable where no server listens on the socket or it goes before it answers.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(str(control_socket), limit=MAX_LINE)
    except OSError as error:
        raise Unavailable(f"no server listens on {control_socket}: {error.strerror}") from None
    try:
        writer.write(encode(RegisterClient(os.getpid())))
        writer.write(encode(Ask(1, action, model, config, force, usage, level)))
        line = await reader.readline()
        if not line:
            raise Unavailable("the server has gone without an answer")
        answer = decode(line, TO_CLIENT)
        assert isinstance(answer, Answer)
        return answer
    except (OSError, ProtocolError) as error:
        raise Unavailable(f"the server's answer cannot be read: {error}") from None
    finally:
        writer.close()
