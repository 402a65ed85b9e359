from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blink_persistent.engines.kv_memory import memory_budget
from blink_server.backend import ModelVersion


@pytest.mark.parametrize(
    ("limits", "free", "budget"),
    [
        ({"memory_fraction": 0.25}, 800, 250),
        ({"memory_fraction": 0.25}, 200, 200),
        ({}, 950, 900),
    ],
)
def test_a_version_may_take_its_share_of_all_but_no_more_than_is_free(
    limits: dict[str, Any], free: int, budget: int
) -> None:
    version = ModelVersion("m", 1, Path("m/1"), {"limits": limits})
    assert memory_budget(version, free, 1000) == budget
