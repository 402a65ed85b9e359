"""Tests marked `gpu` are skipped by name on a machine without one."""

from __future__ import annotations

import pytest

from blink_persistent.gpu.driver import cuda_driver
from blink_server.errors import Unavailable


@pytest.fixture(autouse=True)
def gpu_present() -> None:
    """Skip where there is no GPU."""
    try:
        cuda_driver()
    except Unavailable as missing:
        pytest.skip(str(missing))
