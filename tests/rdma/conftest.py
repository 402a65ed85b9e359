from __future__ import annotations

from collections.abc import Iterator

import pytest

from blink_persistent.testing.threaded_ring import ThreadedRing
from rdma_frontend.testing.guest import SHAPE


@pytest.fixture
def ring() -> Iterator[ThreadedRing]:
    """A ring with a running scheduler, 3 ranges."""
    with ThreadedRing(SHAPE) as ring:
        yield ring
