"""Leases of a ring in this machine's memory, whose owners map it; dead owners' ranges come back.

A worker's connection to the lease socket is its lease. The kernel closes a dead process's
descriptors only after its last thread has left its memory, so the end of the connection proves
that no further word of that owner can land in the ring. Then its words pass to this keeper, which
writes cancel = release = submit for each slot, waits for {submit, EMPTY} and frees the range. The
scheduler knows nothing of it. (The keeper sits in the runner, not in the provisioner, so that
ranges are taken back also while no provisioner lives.)
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blink_persistent.range_keeper import Answer, Lease, RangeKeeper
from blink_persistent.ring import Ring


class LeaseKeeper(RangeKeeper):
    """Serves leases of one ring on a Unix socket, from a thread of its own."""

    def __init__(
        self,
        ring: Ring,
        ring_fd: int,
        *,
        socket_path: Path,
        doorbell: int,
        notify: list[int],
        limits: Mapping[str, Any],
    ) -> None:
        """`doorbell` and `notify` (one a range) are eventfds, handed to owners with `ring_fd`.

        `limits` is what an owner must know of the version, passed on in the handshake.
        """
        super().__init__(
            socket_path,
            range(ring.range_count),
            slots_per_range=ring.slots_per_range,
            epoch=ring.epoch,
        )
        self._ring = ring
        self._ring_fd = ring_fd
        self._doorbell = doorbell
        self._notify = notify
        self._limits = {"bytes": ring.field("total_bytes"), **limits}

    def grant(self, lease: Lease) -> Answer:
        """See `RangeKeeper`."""
        return self._limits, (self._ring_fd, self._doorbell, self._notify[lease.ranges.start])

    def begin_reclaim(self, range_: int) -> None:
        """See `RangeKeeper`."""
        self._ring.cancel_all(range_)
        # It says when one of the slots has news, beside the look every now and then.
        self.selector.register(self._notify[range_], selectors.EVENT_READ, os.eventfd_read)
        os.eventfd_write(self._doorbell, 1)

    def is_reclaimed(self, range_: int) -> bool:
        """See `RangeKeeper`."""
        if self._ring.in_flight(range_, 1):
            return False
        self.selector.unregister(self._notify[range_])
        return True
