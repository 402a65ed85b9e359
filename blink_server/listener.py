"""The server's listening socket: bound before anything else is started."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from typing import cast

from blink_server.errors import BlinkError

_BACKLOG = 2048


def bind_listener(host: str, port: int) -> socket.socket:
    """A listening TCP socket; `port` 0 takes a free one.

    Raises BlinkError naming host and port: in use, not this machine's, not allowed.
    """
    family, address = _resolve(host, port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        in_use = error.errno == errno.EADDRINUSE
        reason = "the port is in use" if in_use else os.strerror(error.errno or 0)
        raise BlinkError(f"cannot listen on {host}:{port}: {reason}") from None
    except OverflowError:
        listener.close()
        raise BlinkError(f"cannot listen on {host}:{port}: a port is at most 65535") from None
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`. Raises BlinkError for a name without address."""
    _, address = _resolve(host, 0)
    return ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback


def url_of(host: str, port: int, *, scheme: str = "http") -> str:
    """The URL for a person to try; a host that means every interface becomes localhost."""
    if host in ("0.0.0.0", "::", ""):
        host = "localhost"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str | int, ...]]:
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise BlinkError(f"host {host!r}: {getattr(error, 'strerror', error)}") from None
    family, _, _, _, address = found[0]
    return family, cast("tuple[str | int, ...]", address)
