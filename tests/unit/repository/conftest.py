from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Without root's right to read everything, where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)
