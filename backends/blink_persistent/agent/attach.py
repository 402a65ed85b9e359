"""The agent's side of its connection to the runner, and the port that the runner's offer makes."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from blink_persistent.agent.port import RingPort
from blink_persistent.lines import LineSocket
from blink_persistent.ring import LAYOUT_HASH
from blink_server.errors import Unavailable

_HANDSHAKE_SECONDS = 10.0

ENTRY_POINT_GROUP = "blink_persistent.ring_ports"
"""Further transports' openers, by name."""

Offer = Mapping[str, Any]

Opener = Callable[[Offer, Sequence[int], LineSocket], RingPort]
"""`opener(offer, descriptors, link)`: see `open_port`."""


class Refused(Unavailable):
    """The runner will not give this agent what it asks for, now or later."""


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
        offer = _granted(link.first(descriptors), "attached", f"the runner at {path}")
    except BaseException as error:
        link.close()
        for fd in descriptors:
            os.close(fd)
        if isinstance(error, OSError | ValueError):
            raise Unavailable(f"the runner at {path}: {error}") from None
        raise
    return link, offer, descriptors


def _granted(answer: Offer, wanted: str, runner: str = "the runner") -> Offer:
    """Any other answer than `wanted` and "refused" says that it may be worth while to ask again."""
    if answer.get("type") == "refused":
        raise Refused(f"{runner} refused: {answer.get('reason')}")
    if answer.get("type") != wanted:
        raise Unavailable(f"{runner} cannot: {answer.get('reason', answer)}")
    return answer


def attach_again(link: LineSocket) -> Offer:
    """The runner's offer of a further connection to the same ranges; the one before is over.

    Waits for the answer. Raises `Refused`, `Unavailable` where it may be asked for again, and
    OSError, ValueError where the link is of no use.
    """
    link.send({"type": "attach again"})
    return _granted(link.first(), "attached")


def open_port(offer: Offer, descriptors: Sequence[int], link: LineSocket) -> RingPort:
    """The port of an offer's transport; `link` is where the offer came from.

    Raises `PortLost`, and `Unavailable` where the transport is unknown here, cannot be used, or
    the ring is another.
    """
    opener = _opener(str(offer.get("transport")))
    try:
        port, epoch = opener(offer, descriptors, link), offer["epoch"]
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise Unavailable(f"the runner offers no usable ring: {error!r}") from error
    if port.epoch != epoch:
        port.close()
        raise Unavailable(f"the ring's epoch is {port.epoch}, not {epoch} as the runner offers")
    return port


def _opener(transport: str) -> Opener:
    """Raises `Unavailable`, naming those that there are."""
    if transport in _OPENERS:
        return _OPENERS[transport]
    others = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if transport not in others:
        raise Unavailable(
            f"this agent does not know the transport {transport!r}; "
            f"it has {', '.join([*_OPENERS, *sorted(others)])}"
        )
    opener: Opener = others[transport].load()
    return opener


def _memory(offer: Offer, descriptors: Sequence[int], _link: LineSocket) -> RingPort:
    """{"bytes": n} and the descriptors [ring memory, scheduler's bell]."""
    from blink_persistent.agent.memory_port import MemoryPort

    memory_fd, doorbell = descriptors
    memory = mmap.mmap(memory_fd, offer["address"]["bytes"])
    return MemoryPort(
        memory, first_range=offer["first_range"], ranges=offer["ranges"], doorbell=doorbell
    )


def _cuda(offer: Offer, _descriptors: Sequence[int], _link: LineSocket) -> RingPort:
    """{"handle": hex digits, "device": ordinal}."""
    from blink_persistent.agent.cuda_port import CudaPort

    address = offer["address"]
    return CudaPort.open(
        bytes.fromhex(address["handle"]),
        address["device"],
        first_range=offer["first_range"],
        ranges=offer["ranges"],
    )


def _rdma(offer: Offer, _descriptors: Sequence[int], link: LineSocket) -> RingPort:
    """The address of `rdma_frontend.host.HostEnd`, and in it "device", this machine's."""
    try:
        from rdma_frontend.port import open_port as open_rdma
    except ImportError as missing:
        raise Unavailable(f"no plugin here offers RDMA: {missing}") from None

    def connect(name: Mapping[str, Any]) -> Mapping[str, Any]:
        link.send({"type": "connect", "name": name})
        connected: Mapping[str, Any] = _granted(link.first(), "connected")["name"]
        return connected

    return open_rdma(
        offer["address"], connect, first_range=offer["first_range"], ranges=offer["ranges"]
    )


_OPENERS: Mapping[str, Opener] = {
    "memory": _memory,
    "cuda": _cuda,
    "rdma": _rdma,
}
