from __future__ import annotations

import asyncio

import pytest

from blink_server.repository.interruptible import unless


async def test_work_that_ends_first_gives_its_result() -> None:
    async def work() -> int:
        return 7

    assert await unless(asyncio.Event(), work()) == 7


async def test_work_that_fails_fails() -> None:
    async def work() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await unless(asyncio.Event(), work())


@pytest.mark.parametrize("outside", [False, True])
async def test_work_is_cancelled_and_ended_by_the_event_or_from_outside(outside: bool) -> None:
    event, begun, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> bool:
        begun.set()
        try:
            return await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(unless(event, work()))
    await begun.wait()
    if outside:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(ended.wait(), 30)
    else:
        event.set()
        assert await task is None
        assert ended.is_set()
