"""Finding or starting the owner of a GPU, as far as no process is needed for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from blink_persistent.gpu_runner.reach import (
    GpuFiles,
    last_words,
    locked,
    reach,
    visible_device,
)
from blink_server.errors import Unavailable


@pytest.mark.parametrize(
    ("variables", "device", "visible"),
    [
        ({}, 2, "2"),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0, "0"),
        ({"CUDA_VISIBLE_DEVICES": "3, 5"}, 1, "5"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-abc"}, 0, "GPU-abc"),
    ],
)
def test_an_owner_sees_its_gpu_alone(variables: dict[str, str], device: int, visible: str) -> None:
    assert visible_device(device, variables) == visible


def test_a_gpu_that_is_not_visible_is_named() -> None:
    with pytest.raises(Unavailable, match="GPU 2 does not exist: CUDA_VISIBLE_DEVICES is '3,5'"):
        visible_device(2, {"CUDA_VISIBLE_DEVICES": "3,5"})


def test_the_last_words_are_the_fatal_ones(tmp_path: Path) -> None:
    files = GpuFiles(tmp_path, 0)
    assert last_words(files) == ""
    files.log.write_text("a warning\n\nthe last line\n\n")
    assert last_words(files) == "the last line"
    files.log.write_text("a warning\nFatal Python error: Segmentation fault\n  File x, line 1\n")
    assert last_words(files) == "Fatal Python error: Segmentation fault"


def test_a_lock_that_is_anothers_is_seen_or_waited_for(tmp_path: Path) -> None:
    with locked(tmp_path / "lock") as held:
        assert held
        with locked(tmp_path / "lock", wait=False) as second:
            assert not second
    with locked(tmp_path / "lock", wait=False) as held:
        assert held


def test_an_owner_that_cannot_be_started_is_named_with_its_reason(short_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"GPU 0 did not answer: .*No module named no_such"):
        reach(GpuFiles(short_path, 0), "no_such")
