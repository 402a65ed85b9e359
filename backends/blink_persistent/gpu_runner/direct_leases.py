"""Ranges of a ring in GPU memory that agents on other machines reach by RDMA, past this host's.

The door leases them here for its frontends. The queue pairs and regions are this process's, which
owns the memory: so they are gone before it is, and before a range is another's.

    door -> owner  {"type": "attach", "layout_hash": "<16 hex digits>", "ranges": n, "device": name}
    owner -> door  {"type": "attached", "range": i, "epoch": e, "bytes": n, limits ...} with a
                    copy of the ring, in which words and statuses of the ranges are kept fresh;
                    or {"type": "refused", "reason": "..."}
    door -> owner  {"type": "renew"}
    owner -> door  {"type": "renewed", "address": {...}}: nothing lands by the address before it
    door -> owner  {"type": "connect", "name": {...}}
    owner -> door  {"type": "connected", "name": {...}}
    owner -> door  {"type": "unreachable", "reason": "..."}: in the place of either answer

JSON lines; the end of the connection gives the ranges back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from blink_persistent.agent.port import parts
from blink_persistent.gpu.device_ring import DeviceRing
from blink_persistent.gpu.direct import DirectMemory, open_to_cards
from blink_persistent.gpu.driver import CudaError, Gpu
from blink_persistent.range_keeper import Answer, Lease, RangeKeeper
from blink_server.errors import BlinkError, Unavailable

log = logging.getLogger(__name__)


class CardEnd(Protocol):
    """The host's end of one agent's connections, as `rdma_frontend.host.HostEnd` is one."""

    def renew(self) -> Mapping[str, Any]: ...
    def connect(self, peer: Mapping[str, Any]) -> Mapping[str, Any]: ...
    def close(self) -> None: ...


class DirectLeases(RangeKeeper):
    """Leases the ranges from `first` on. Its thread makes no call of CUDA but inside `still`."""

    def __init__(
        self,
        ring: DeviceRing,
        memory: DirectMemory,
        *,
        first: int,
        socket_path: Path,
        limits: Mapping[str, Any],
        still: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`memory` is the ring's, closed here. Nothing is resident on the GPU inside `still()`:
        whether pinning its memory would wait for that is not known."""
        mirror = ring.mirror
        super().__init__(
            socket_path,
            range(first, mirror.range_count),
            slots_per_range=mirror.slots_per_range,
            epoch=mirror.epoch,
        )
        self._ring, self._memory, self._still = ring, memory, still
        self._slots = slice(first * mirror.slots_per_range, None)
        self._limits = {"bytes": mirror.field("total_bytes"), **limits}
        self._ends: dict[int, CardEnd] = {}  # by the first of its ranges
        self._over: dict[int, bool] = {}  # of each range that is taken back, whether it is empty

    @classmethod
    def open(
        cls, name: str, gpu: Gpu, ring: DeviceRing, *, host_ranges: int | None, **options: Any
    ) -> DirectLeases | None:
        """Set all but the first `host_ranges` aside; `options` are the constructor's.

        None where none are set aside, or no card can reach the GPU's memory, which is logged with
        the version's `name`: frontends then go through this host's agent.
        """
        if host_ranges is None:
            return None
        if host_ranges >= ring.mirror.range_count:
            log.warning(
                "%s: frontends go through this host's agent: its workers need %d of its %d ranges "
                "of slots (limits.slots)",
                *(name, host_ranges, ring.mirror.range_count),
            )
            return None
        try:
            with options["still"]():
                memory = open_to_cards(gpu, ring.address, ring.nbytes)
        except (Unavailable, CudaError) as error:
            log.warning("%s: frontends go through this host's agent: %s", name, error)
            return None
        try:
            return cls(ring, memory, first=host_ranges, **options)
        except BaseException:
            memory.close()
            raise

    @property
    def first(self) -> int:
        """The first of its ranges."""
        return self._slots.start // self._ring.mirror.slots_per_range

    def close(self) -> None:
        """End the agents' connections; the ring's memory is no card's any more."""
        super().close()
        self._memory.close()

    def look(self) -> None:
        """Bring words and statuses in the ring's copy up to date, and go on taking ranges back.

        For the thread whose calls of CUDA concern the ring; every now and then.
        """
        mirror = self._ring.mirror
        # Before the pulls: what is pulled is then all that ever landed in them. And only those that
        # are not over: the others may be somebody's again at any moment.
        taken_back = [range_ for range_, over in list(self._over.items()) if not over]
        self._ring.pull(mirror.words[self._slots])
        self._ring.pull(mirror.status[self._slots])
        for range_ in taken_back:
            first = range_ * mirror.slots_per_range
            if mirror.cancel_all(range_):
                self._ring.push(mirror.words[first : first + mirror.slots_per_range])
            else:
                self._over[range_] = True
        self._ring.flush()

    def grant(self, lease: Lease) -> Answer:
        """See `RangeKeeper`."""
        device, first, count = lease.asked.get("device"), lease.ranges.start, len(lease.ranges)
        try:
            from rdma_frontend.gpu_end import GpuEnd
        except ImportError as missing:
            raise Unavailable(f"no plugin here offers RDMA: {missing}") from None
        mirror = self._ring.mirror
        self._ends[first] = GpuEnd(str(device), self._memory, parts(mirror.header, first, count))
        return self._limits, (self._ring.mirror_file,)

    def hear(self, lease: Lease, line: Mapping[str, Any]) -> None:
        """See `RangeKeeper`."""
        end = self._ends[lease.ranges.start]
        try:
            if line.get("type") == "renew":
                with self._still():
                    answer = {"type": "renewed", "address": end.renew()}
            elif line.get("type") == "connect":
                answer = {"type": "connected", "name": end.connect(line["name"])}
            else:
                raise ValueError(f"unexpected line {line.get('type')!r}")
        except (BlinkError, ValueError, KeyError, TypeError) as error:
            answer = {"type": "unreachable", "reason": str(error)}
        lease.link.send(answer)

    def revoke(self, lease: Lease) -> None:
        """See `RangeKeeper`."""
        with self._still():
            self._ends.pop(lease.ranges.start).close()

    def begin_reclaim(self, range_: int) -> None:
        """See `RangeKeeper`; done by `look`, whose thread may copy."""
        self._over[range_] = False

    def is_reclaimed(self, range_: int) -> bool:
        """See `RangeKeeper`."""
        if not self._over[range_]:
            return False
        del self._over[range_]
        return True
