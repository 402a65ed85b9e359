from __future__ import annotations

import asyncio
import threading

import pytest

from blink_server.aside import aside, begin_aside


def test_results_and_errors_come_back() -> None:
    assert begin_aside(int, "11", base=2).result(10) == 3
    with pytest.raises(ZeroDivisionError):
        begin_aside(lambda: 1 / 0).result(10)


def test_what_hangs_is_left_behind() -> None:
    release = threading.Event()
    future = begin_aside(release.wait)
    with pytest.raises(TimeoutError):
        future.result(0.01)
    release.set()
    assert future.result(10)


async def test_a_cancelled_wait_leaves_the_call_alone() -> None:
    release, ended = threading.Event(), threading.Event()

    def work() -> None:
        release.wait()
        ended.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await aside(work)
    release.set()
    assert ended.wait(10)
