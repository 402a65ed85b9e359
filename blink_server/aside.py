"""Calls into plugins that may never return: in a thread that nobody has to wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def begin_aside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call it in a thread of its own, which does not keep the process from ending.

    `result(timeout)` waits for it; what hangs is left behind.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # whoever stops waiting does not stop the call

    def run() -> None:
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=f"aside {function!r}", daemon=True).start()
    return future


async def aside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The same for the event loop: a cancelled wait leaves the call behind."""
    return await asyncio.wrap_future(begin_aside(function, *args, **kwargs))
