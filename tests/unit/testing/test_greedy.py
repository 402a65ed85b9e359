"""What a greedy answer may differ in from the reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blink_persistent.testing import greedy
from blink_server.testing.memory_checkpoint import tiny_architecture

BEST, NEAR, FAR = range(3)
PROMPT = (BEST, FAR)


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that gives every position the same logits, of which two are nearly the same."""

    def forward(architecture: Any, weights: Any, token_ids: Any) -> Any:
        return SimpleNamespace(logits=np.tile(np.float32([2, 1.99, 0]), (len(token_ids), 1)))

    monkeypatch.setattr(greedy, "forward", forward)


def check(*outputs: list[int]) -> None:
    greedy.check_greedy(tiny_architecture(), {}, ((PROMPT, output) for output in outputs))


def test_near_ties_are_counted_over_all_answers() -> None:
    tied = [NEAR] * 2 + [BEST] * 8
    check([BEST] * 10, [BEST] * 10, tied)
    with pytest.raises(AssertionError, match="2 of 10 are not the best"):
        check(tied)


def test_no_token_may_be_worse_than_rounding_makes_it() -> None:
    with pytest.raises(AssertionError, match="margins"):
        check([BEST] * 1000, [FAR])
