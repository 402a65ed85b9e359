"""Sends requests at their times, or a set number at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from blink_server.bench.outcome import Outcome
from blink_server.bench.workload import Workload

Clock = Callable[[], float]
"""Monotonic seconds."""

Send = Callable[[int, float], Awaitable[Outcome]]
"""`send(number, scheduled)`: one request, to its end; raises nothing for what the server does."""

_TIMER_SECONDS = 0.0015  # an event loop's timers tick in milliseconds


async def dispatch(workload: Workload, send: Send, clock: Clock) -> list[Outcome]:
    """Send all requests of a workload and wait for their ends; outcomes by number.

    In an open loop a request is never held back for another one.
    """
    count = len(workload.sizes)
    if workload.concurrency is None:
        start = clock()
        tasks = []
        async with asyncio.TaskGroup() as group:
            for number, time in enumerate(workload.times):
                await _until(start + time, clock)
                tasks.append(group.create_task(_sent(send, number, start + time)))
        return [task.result() for task in tasks]
    numbers = iter(range(count))
    outcomes: dict[int, Outcome] = {}

    async def client() -> None:
        for number in numbers:
            outcomes[number] = await send(number, clock())

    async with asyncio.TaskGroup() as group:
        for _ in range(workload.concurrency):
            group.create_task(client())
    return [outcomes[number] for number in range(count)]


async def _sent(send: Send, number: int, scheduled: float) -> Outcome:
    return await send(number, scheduled)


async def _until(due: float, clock: Clock) -> None:
    """Sleep for the most part, then look at the clock between other events."""
    await asyncio.sleep(max(0.0, due - clock() - _TIMER_SECONDS))
    while clock() < due:  # noqa: ASYNC110 (time is what is waited for)
        await asyncio.sleep(0)
