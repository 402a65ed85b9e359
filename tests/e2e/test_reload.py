"""Reloads of a real backend under traffic: rings, schedulers and engines are swapped."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from blink_server.testing.server_process import ServerProcess
from blink_server.testing.traffic import Traffic

Start = Callable[..., Awaitable[ServerProcess]]


async def test_no_request_is_lost_while_rings_are_swapped(
    start: Start, copy_tiny: Callable[[str], Path], assert_nothing_left: Callable[[], None]
) -> None:
    directory = copy_tiny("tiny")
    server = await start("--settle-secs=0.2", "--workers=2")
    url = await server.ready()
    traffic = Traffic.start(url, "tiny", clients=6, tokens=4)
    for reload in range(1, 4):
        lines = len(server.lines)
        os.utime(directory / "config.json", (reload, reload))  # no reason to load
        os.utime(directory / "tokenizer.json", (reload, reload))
        await server.line("tiny:1 UNAVAILABLE: unloaded", after=lines)
    outcomes = await traffic.stop()
    assert {outcome.failure for outcome in outcomes} == {""}
    assert len(outcomes) > 20
    assert [path.name for path in server.runtime.glob("runner-*")] == ["runner-4"]
    assert await server.stop() == 0
    assert_nothing_left()
