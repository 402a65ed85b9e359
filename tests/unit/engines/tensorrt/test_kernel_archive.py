"""Kernels go into a plan and come out of it as they were."""

from __future__ import annotations

import pytest

from blink_persistent.engines.tensorrt.kernel_archive import (
    CompiledKernel,
    Role,
    pack_kernels,
    unpack_kernels,
)

KERNELS = [
    CompiledKernel(Role.ATTEND_ROWS, 8, 4, 37896, "attend_split", bytes(range(256))),
    CompiledKernel(Role.APPEND_PACKED, 0, 1, 0, "append_prefill", b"\0x"),
]


def test_what_is_packed_is_unpacked() -> None:
    assert unpack_kernels(pack_kernels(KERNELS)) == KERNELS
    assert unpack_kernels(pack_kernels([])) == []


@pytest.mark.parametrize("kept", [0, 3, 20, 150, 300])
def test_an_archive_that_is_not_whole_is_refused(kept: int) -> None:
    archive = pack_kernels(KERNELS)
    with pytest.raises(ValueError, match="the attention's kernels"):
        unpack_kernels(archive[:kept])
    with pytest.raises(ValueError, match="the attention's kernels"):
        unpack_kernels(archive + b"\0")


def test_a_name_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than 64 bytes"):
        pack_kernels([CompiledKernel(Role.ATTEND_ROWS, 1, 4, 0, "k" * 65, b"")])
