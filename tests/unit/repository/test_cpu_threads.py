from __future__ import annotations

from pathlib import Path

import pytest

from blink_server.backend import ModelVersion
from blink_server.repository.cpu_threads import cpu_threads, usable_cores


def versions(*limits: int | None) -> list[ModelVersion]:
    return [
        ModelVersion(
            f"m{number}", 1, Path(), {"limits": {} if limit is None else {"cpu_threads": limit}}
        )
        for number, limit in enumerate(limits)
    ]


@pytest.mark.parametrize(
    ("cores", "limits", "expected"),
    [
        (8, [None], [8]),
        (8, [None, None], [4, 4]),
        (8, [None, None, None], [2, 2, 2]),
        (2, [None, None, None], [1, 1, 1]),
        (8, [6, None], [6, 2]),
        (8, [3, None, None], [3, 2, 2]),
        (8, [1, 2, None], [1, 2, 5]),
        (4, [16, None], [16, 1]),
        (4, [1, 1], [1, 1]),
    ],
)
def test_what_each_version_gets(cores: int, limits: list[int | None], expected: list[int]) -> None:
    served = versions(*limits)
    assert [cpu_threads(each, served, cores=cores) for each in served] == expected


def test_a_version_that_is_not_among_the_served_is_one_more() -> None:
    (new,) = versions(None)
    assert cpu_threads(new, versions(None, None, None), cores=8) == 2


def test_no_more_cores_are_used_than_the_machine_has() -> None:
    assert usable_cores() >= 1
    assert len(list(Path("/sys/devices/system/cpu").glob("cpu[0-9]*"))) >= usable_cores()
