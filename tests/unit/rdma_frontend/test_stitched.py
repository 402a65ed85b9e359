from __future__ import annotations

import ctypes
import mmap
import os

import pytest

from rdma_frontend.stitched import Stitched

PAGE = mmap.PAGESIZE


@pytest.fixture
def file() -> int:
    fd = os.memfd_create("test")
    os.write(fd, b"".join(bytes([65 + n]) * PAGE for n in range(4)))
    return fd


def test_pieces_lie_side_by_side_and_are_shared(file: int) -> None:
    mapped = Stitched(file, [(3 * PAGE, PAGE), (0, 2 * PAGE)], writable=True)
    assert mapped.length == 3 * PAGE
    assert mapped.addresses == [mapped.address, mapped.address + PAGE]
    assert ctypes.string_at(mapped.address, 3 * PAGE) == b"D" * PAGE + b"A" * PAGE + b"B" * PAGE
    ctypes.memset(mapped.addresses[1], ord("z"), 1)
    assert os.pread(file, 2, 0) == b"zA"
    os.pwrite(file, b"y", 3 * PAGE)
    assert ctypes.string_at(mapped.address, 1) == b"y"
    mapped.close()


def test_what_is_not_to_be_written_is_mapped_so(file: int) -> None:
    mapped = Stitched(file, [(PAGE, PAGE)], writable=False)
    with open("/proc/self/maps", encoding="ascii") as maps:  # noqa: PTH123
        (line,) = [line for line in maps if line.startswith(f"{mapped.address:x}-")]
    assert line.split()[1] == "r--s"
    mapped.close()


@pytest.mark.parametrize("piece", [(100, PAGE), (0, 100)])
def test_what_fits_no_pages_is_refused(file: int, piece: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="do not fit pages"):
        Stitched(file, [piece], writable=True)


def test_a_file_that_cannot_be_mapped_is_an_error() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        Stitched(-1, [(0, PAGE)], writable=True)
