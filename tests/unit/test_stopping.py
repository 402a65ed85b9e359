from __future__ import annotations

import asyncio
import os
import signal

import pytest

from blink_server.errors import BlinkError
from blink_server.stopping import Stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_the_first_signal_drains_and_the_second_kills(
    number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    killed = asyncio.Event()
    stopping = Stopping(killed.set)
    stopping.listen()
    os.kill(os.getpid(), number)
    await stopping.wait()
    assert f"{number.name}: draining" in caplog.text
    assert not killed.is_set()
    stopping.confess()  # all was served
    os.kill(os.getpid(), number)
    await killed.wait()
    with pytest.raises(BlinkError, match="ended by a second signal"):
        stopping.confess()


async def test_a_signal_to_what_ends_for_another_reason_kills() -> None:
    killed = asyncio.Event()
    stopping = Stopping(killed.set)
    stopping.listen()
    stopping.begin()
    os.kill(os.getpid(), signal.SIGTERM)
    await killed.wait()
