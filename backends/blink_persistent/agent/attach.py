"""The agent's side of its connection to the runner, and the port that the runner's offer makes."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blink_persistent.agent.lines import LineSocket
from blink_persistent.agent.port import RingPort
from blink_persistent.ring import LAYOUT_HASH
from blink_server.errors import Unavailable

_HANDSHAKE_SECONDS = 10.0

Offer = Mapping[str, Any]


def attach(path: str) -> tuple[LineSocket, Offer, list[int]]:
    """(connection, offer, the offer's descriptors) of the runner at this socket.

    The caller closes all of them. Raises `Unavailable` where it is not there, or refuses.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_HANDSHAKE_SECONDS)
    link, descriptors = LineSocket(connection), []  # type: tuple[LineSocket, list[int]]
    try:
        connection.connect(path)
        link.send({"type": "attach", "layout_hash": f"{LAYOUT_HASH:016x}"})
        offer = link.first(descriptors)
        if offer.get("type") != "attached":
            raise Unavailable(f"the runner at {path} refused: {offer.get('reason')}")
    except BaseException as error:
        link.close()
        for fd in descriptors:
            os.close(fd)
        if isinstance(error, OSError | ValueError):
            raise Unavailable(f"the runner at {path}: {error}") from None
        raise
    connection.settimeout(None)
    return link, offer, descriptors


def open_port(offer: Offer, descriptors: Sequence[int]) -> RingPort:
    """The port of an offer's transport.

    Raises `Unavailable` where it is unknown here, cannot be used, or the ring is another.
    """
    try:
        opener = _OPENERS[offer["transport"]]
    except KeyError:
        raise Unavailable(
            f"this agent does not know the transport {offer.get('transport')!r}; "
            f"it has {', '.join(_OPENERS)}"
        ) from None
    try:
        port, epoch = opener(offer, descriptors), offer["epoch"]
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise Unavailable(f"the runner offers no usable ring: {error!r}") from error
    if port.epoch != epoch:
        port.close()
        raise Unavailable(f"the ring's epoch is {port.epoch}, not {epoch} as the runner offers")
    return port


def _memory(offer: Offer, descriptors: Sequence[int]) -> RingPort:
    """{"bytes": n} and the descriptors [ring memory, scheduler's bell]."""
    from blink_persistent.agent.memory_port import MemoryPort

    memory_fd, doorbell = descriptors
    memory = mmap.mmap(memory_fd, offer["address"]["bytes"])
    return MemoryPort(
        memory, first_range=offer["first_range"], ranges=offer["ranges"], doorbell=doorbell
    )


def _cuda(offer: Offer, _descriptors: Sequence[int]) -> RingPort:
    """{"handle": hex digits, "device": ordinal}."""
    from blink_persistent.agent.cuda_port import CudaPort

    address = offer["address"]
    return CudaPort.open(
        bytes.fromhex(address["handle"]),
        address["device"],
        first_range=offer["first_range"],
        ranges=offer["ranges"],
    )


_OPENERS: Mapping[str, Callable[[Offer, Sequence[int]], RingPort]] = {
    "memory": _memory,
    "cuda": _cuda,
}
