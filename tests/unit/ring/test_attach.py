"""Making a ring, attaching to it, and refusing what is not one."""

from __future__ import annotations

import mmap
import os

import numpy as np
import numpy.typing as npt
import pytest

from blink_persistent import _native
from blink_persistent.ring import HEADER, LAYOUT_HASH, RECORD, TIMING, Ring, create_ring_memory

PAGE = 4096
SHAPE = _native.RingShape(2, 512, 1000, 3000, 1)


@pytest.fixture
def memory() -> npt.NDArray[np.uint8]:
    raw = np.zeros(SHAPE.total_bytes, np.uint8)
    _native.create_ring(raw, SHAPE, 5)
    return raw


def header_of(memory: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
    return memory[: HEADER.itemsize].view(HEADER)


def test_a_new_ring_is_empty(memory: npt.NDArray[np.uint8]) -> None:
    ring = Ring(memory)
    assert (ring.slot_count, ring.range_count, ring.slots_per_range, ring.epoch) == (
        1024,
        2,
        512,
        5,
    )
    assert all(ring.atomic.status(slot) == (0, 0, 0) for slot in range(ring.slot_count))
    assert not any(ring.atomic.submitted(slot) for slot in range(ring.slot_count))
    assert not ring.atomic.accepting()


def test_a_ranges_part_of_every_region_is_whole_pages_and_lies_apart(
    memory: npt.NDArray[np.uint8],
) -> None:
    ring = Ring(memory)
    sizes = {
        "words": 512 * 16,
        "status": 512 * 16,
        "records": 512 * RECORD.itemsize,
        "timings": 512 * TIMING.itemsize,
        "prompts": 4 * ring.prompts.shape[1],
        "outputs": 4 * ring.outputs.shape[1],
        "aux": 4 * ring.aux.shape[1],
    }
    end = HEADER.itemsize
    for region, part in sizes.items():
        start = ring.field(f"{region}_offset")
        assert start % PAGE == part % PAGE == 0, region
        assert start == end, region
        end = start + 2 * part
    assert end == ring.field("total_bytes") == SHAPE.total_bytes
    assert (ring.prompts.shape[1], ring.outputs.shape[1], ring.aux.shape[1]) == (1024, 3072, 1024)


def test_views_reach_the_last_word_of_every_part(memory: npt.NDArray[np.uint8]) -> None:
    ring = Ring(memory)
    ring.aux[1, -1] = 7
    assert memory[-4:].tobytes() == b"\7\0\0\0"
    ring.records["seed"][-1] = 1 << 63
    ring.outputs[0, -1], ring.outputs[1, 0] = 1, 2
    assert Ring(memory).records["seed"][-1] == 1 << 63
    assert ring.outputs.ravel()[3071:3073].tolist() == [1, 2]


def test_two_mappings_of_one_descriptor_are_one_ring() -> None:
    fd, memory = create_ring_memory(SHAPE, 1)
    try:
        assert os.get_inheritable(fd) is False
        mine, other = Ring(memory), Ring(mmap.mmap(fd, SHAPE.total_bytes))
        mine.atomic.submit(1023, 9)
        assert other.atomic.submitted(1023) == 9
    finally:
        os.close(fd)


def test_another_layout_is_refused_naming_both_hashes(memory: npt.NDArray[np.uint8]) -> None:
    other = LAYOUT_HASH ^ 0xFF
    header_of(memory)["layout_hash"] = other
    with pytest.raises(
        ValueError, match=f"{other:016x} differs from this build's {LAYOUT_HASH:016x}"
    ):
        Ring(memory)


def test_memory_without_a_ring_is_refused(memory: npt.NDArray[np.uint8]) -> None:
    header_of(memory)["magic"] += 1
    with pytest.raises(ValueError, match="wrong magic"):
        Ring(memory)
    with pytest.raises(ValueError, match="holds no ring"):
        Ring(np.zeros(100, np.uint8))


@pytest.mark.parametrize(
    "field",
    [
        name
        for name, _, _, writer in _native.layout_table()["RingHeader"][1]
        if writer == "provisioner" and name not in ("magic", "layout_hash", "epoch")
    ],
)
def test_a_header_that_contradicts_itself_is_refused(
    memory: npt.NDArray[np.uint8], field: str
) -> None:
    header_of(memory)[field] += 1
    with pytest.raises(ValueError, match="ring: "):
        Ring(memory)


def test_memory_cut_short_is_refused(memory: npt.NDArray[np.uint8]) -> None:
    with pytest.raises(ValueError, match="do not fit the memory"):
        Ring(memory[:-1].copy())
    with pytest.raises(ValueError, match="too small for its shape"):
        _native.create_ring(np.zeros(SHAPE.total_bytes - 1, np.uint8), SHAPE, 1)


@pytest.mark.parametrize(
    ("ranges", "slots", "match"),
    [
        (0, 256, "ranges must be 1 to"),
        (65, 256, "ranges must be"),
        (1, 0, "slots"),
        (1, 300, "256"),
    ],
)
def test_impossible_shapes_are_refused(ranges: int, slots: int, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        _ = _native.RingShape(ranges, slots, 1, 1, 1).total_bytes


def test_slots_beyond_the_ring_are_refused(memory: npt.NDArray[np.uint8]) -> None:
    atomic = Ring(memory).atomic
    for call in (atomic.submit, atomic.release, atomic.cancel):
        with pytest.raises(IndexError):
            call(1024, 1)
    with pytest.raises(IndexError):
        atomic.status(1024)
    with pytest.raises(IndexError):
        atomic.read_statuses(1, np.zeros((1024, 2), np.uint64))
