"""What tests know of the guest that tests/rdma/run.sh starts."""

from __future__ import annotations

import subprocess

from blink_persistent.testing.scripted_shape import ScriptedShape

HOST_DEVICE, FRONTEND_DEVICE = "rxe1", "rxe0"  # of whole servers
HOST_LINK = "rdma1"  # the network interface below the host's device
PORTS_HOST_DEVICE, PORTS_FRONTEND_DEVICE = "rxe3", "rxe2"  # of ports' tests, who run beside them
PORTS_HOST_LINK = "rdma3"
SHAPE = ScriptedShape(ranges=3, max_rows=8, epoch=5)


def set_link(link: str, state: str) -> None:
    """A network interface "up" or "down"."""
    subprocess.run(["ip", "link", "set", link, state], check=True)
