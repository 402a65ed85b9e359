"""What tests know of the guest that tests/rdma/run.sh starts."""

from __future__ import annotations

import subprocess

from blink_persistent.testing.scripted_shape import ScriptedShape

HOST_DEVICE, FRONTEND_DEVICE = "rxe1", "rxe0"
HOST_LINK = "rdma1"  # the network interface below the host's device
SHAPE = ScriptedShape(ranges=3, max_rows=8, epoch=5)


def set_link(state: str) -> None:
    """The host's network interface "up" or "down"."""
    subprocess.run(["ip", "link", "set", HOST_LINK, state], check=True)
