"""The layout table is the header's: sizes, offsets, writers and enumerations."""

from __future__ import annotations

import re
from enum import IntEnum
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import blink_persistent
from blink_persistent import _native, ring

HEADER_FILE = Path(blink_persistent.__file__).parent / "csrc/include/blink/ring_layout.h"
TABLE = _native.layout_table()
WRITERS = {
    "RingHeader": {"provisioner", "agent", "scheduler"},
    "FrontendWords": {"frontend"},
    "SlotStatus": {"scheduler"},
    "RequestRecord": {"frontend"},
    "SlotTiming": {"scheduler"},
}
C_SIZES = {"uint32_t": 4, "int32_t": 4, "uint64_t": 8, "float": 4}
C_SIZES["GraphLaunches"] = _native.SHOWN_GRAPHS * C_SIZES["uint32_t"]
ALIGNMENTS = {**C_SIZES, "GraphLaunches": C_SIZES["uint32_t"]}


@pytest.mark.parametrize("struct", TABLE)
def test_fields_lie_apart_aligned_and_inside(struct: str) -> None:
    size, fields = TABLE[struct]
    spans = [(offset, offset + C_SIZES[c_type]) for _, c_type, offset, _ in fields]
    assert all(end <= start for (_, end), (start, _) in pairwise([*spans, (size, size)]))
    assert all(offset % ALIGNMENTS[c_type] == 0 for _, c_type, offset, _ in fields)


@pytest.mark.parametrize("struct", WRITERS)
def test_every_word_has_one_writer(struct: str) -> None:
    assert {writer for *_, writer in TABLE[struct][1]} == WRITERS[struct]


def test_no_cache_line_of_the_header_has_two_writers() -> None:
    lines: dict[int, set[str]] = {}
    for _, _, offset, writer in TABLE["RingHeader"][1]:
        lines.setdefault(offset // 64, set()).add(writer)
    assert all(len(writers) == 1 for writers in lines.values())


def test_the_state_word_can_be_stored_at_once() -> None:
    size, fields = TABLE["SlotStatus"]
    assert [(name, c_type, offset) for name, c_type, offset, _ in fields] == [
        ("ticket", "uint32_t", 0),
        ("epoch", "uint32_t", 4),
        ("word", "uint64_t", 8),
    ]
    assert size == 16  # 4,096 slots are one bulk read of 64 KiB


@pytest.mark.parametrize(
    ("struct", "dtype"),
    [("RingHeader", ring.HEADER), ("RequestRecord", ring.RECORD), ("SlotTiming", ring.TIMING)],
)
def test_dtypes_are_the_tables(struct: str, dtype: np.dtype[np.void]) -> None:
    size, fields = TABLE[struct]
    assert dtype.itemsize == size
    assert dtype.fields is not None
    for name, c_type, offset, _ in fields:
        field, at = dtype.fields[name][:2]
        assert (field.itemsize, at) == (C_SIZES[c_type], offset)
        assert field.base.kind == ("u" if c_type == "GraphLaunches" else c_type[0])


@pytest.mark.parametrize(
    ("c_enum", "python"),
    [
        ("SlotState", ring.SlotState),
        ("Reason", ring.Reason),
        ("SchedulerCondition", ring.Condition),
    ],
)
def test_enumerations_are_the_headers(c_enum: str, python: type[IntEnum]) -> None:
    body = re.search(rf"enum class {c_enum} [^{{]*{{(.*?)}};", HEADER_FILE.read_text(), re.S)
    assert body is not None
    members = re.findall(r"k(\w+) = (\d+)", body[1])
    names = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper() for name, _ in members]
    assert dict(zip(names, (int(value) for _, value in members), strict=True)) == {
        member.name: member.value for member in python
    }


def test_the_hash_is_of_every_fields_text() -> None:
    """FNV-1a of the field lists, as ring_layout.h says it: any change of a field changes it."""
    text = ""
    for struct, (size, fields) in TABLE.items():
        text += f"{struct} {size}{{"
        text += "".join(f"{c_type} {name} {offset};" for name, c_type, offset, _ in fields)
    digest = 0xCBF29CE484222325
    for byte in text.encode():
        digest = (digest ^ byte) * 0x100000001B3 % (1 << 64)
    assert digest == _native.LAYOUT_HASH
