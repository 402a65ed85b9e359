"""For tests: a port that nobody else is given before the server that is told of it."""

from __future__ import annotations

import socket


def reserve_port() -> socket.socket:
    """Keeps a free TCP port of 127.0.0.1 while it is open; nobody listens there yet.

    Whoever is told the port can bind it, with SO_REUSEADDR as servers do; the kernel gives it to
    nobody who asks for any port.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
