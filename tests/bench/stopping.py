"""A benchmark that is told to stop ends what it has started, as after Ctrl-C."""

from __future__ import annotations

import signal
from types import FrameType


def stop_on_sigterm() -> None:
    """Let SIGTERM act as SIGINT does: `finally` is run, and `asyncio.run` cancels its task."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)
