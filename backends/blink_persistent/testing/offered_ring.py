"""A scripted ring that workers may lease ranges of, as a runner offers it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blink_persistent.leases import LeaseKeeper
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_persistent.testing.threaded_ring import ThreadedRing
from blink_server.backend import Endpoint

SHAPE = ScriptedShape(ranges=2)

_LIMITS = {
    "context_length": SHAPE.context_length,
    "vocabulary_size": SHAPE.vocabulary_size,
    "eos_token_ids": [SHAPE.eos_token_id],
    "max_queue": 100,
    "max_rows": 8,
    "kv_blocks": 8,
    "kv_block_tokens": 16,
    "graphs": [[0, 8, 8], [1, 2, 32]],
}


@contextmanager
def offered_ring(directory: Path) -> Iterator[Endpoint]:
    """The endpoint of a ring that answers; its socket is in `directory`, whose path is short."""
    path = directory / "ring.sock"
    with ThreadedRing(SHAPE) as ring:
        keeper = LeaseKeeper(
            ring.harness.ring,
            ring.harness.ring_fd,
            socket_path=path,
            doorbell=ring.harness.doorbell,
            notify=ring.harness.bells,
            limits=_LIMITS,
        )
        keeper.start()
        yield Endpoint("shm", {"socket": str(path)})
        keeper.close()
