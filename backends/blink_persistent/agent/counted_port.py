"""A port that counts what goes through it, for the mirror's header."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blink_persistent import _native
from blink_persistent.agent.port import Bytes, Region, RingPort, Span
from blink_persistent.ring import Ring

_FIELDS = {
    name: offset
    for name, _, offset, writer in _native.layout_table()["RingHeader"][1]
    if writer == "agent"
}
_PART = slice(min(_FIELDS.values()), max(_FIELDS.values()) + 8)  # uint64 side by side


class AgentCounts:
    """What an agent has done since it started; the fields of the header that are its own."""

    def __init__(self) -> None:
        self.agent_turns = 0
        self.agent_reads = 0
        self.agent_read_bytes = 0
        self.agent_writes = 0
        self.agent_written_bytes = 0
        self.agent_reconnections = 0

    def show(self, ring: Ring) -> None:
        """Write them to a mirror's header, each at once."""
        ring.header.view(np.uint8)[_PART].view(np.uint64)[:] = [
            getattr(self, name) for name in _FIELDS
        ]


class CountedPort:
    """`RingPort` over another one. A read is counted for each span, a write for each call."""

    def __init__(self, port: RingPort, counts: AgentCounts) -> None:
        self._port = port
        self._counts = counts
        self.epoch = port.epoch
        self.first_range, self.ranges = port.first_range, port.ranges
        self.all_ranges = port.all_ranges
        self.cheap_gap, self.longest_read = port.cheap_gap, port.longest_read

    def read(self, spans: Sequence[Span]) -> list[Bytes]:
        """See `RingPort.read`."""
        found = self._port.read(spans)
        self._counts.agent_reads += len(spans)
        self._counts.agent_read_bytes += sum(span.length for span in spans)
        return found

    def write(self, region: Region, offset: int, data: Bytes) -> None:
        """See `RingPort.write`."""
        self._port.write(region, offset, data)
        self._counts.agent_writes += 1
        self._counts.agent_written_bytes += data.nbytes

    def post(self) -> None:
        """See `RingPort.post`."""
        self._port.post()

    def close(self) -> None:
        """See `RingPort.close`."""
        self._port.close()
