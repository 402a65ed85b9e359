from __future__ import annotations

import itertools

import pytest

from blink_server.testing import eventually as module
from blink_server.testing.eventually import eventually


async def test_it_asks_until_the_answer_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0)
    numbers = itertools.count()

    async def ask() -> int:
        return next(numbers)

    assert await eventually(ask, lambda number: number == 3) == 3
    assert next(numbers) == 4


async def test_it_tells_the_last_answer_where_none_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SECONDS", 0.01)

    async def ask() -> str:
        return "loading"

    with pytest.raises(AssertionError, match="still 'loading'"):
        await eventually(ask, lambda state: state == "ready")
