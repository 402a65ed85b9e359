"""What a graph's file says of itself, read without the graph: a few reads, whatever its size.

An ONNX file is one protobuf message, `ModelProto`; its fields follow one another, each with its
length before it, so that the graph and its weights are stepped over. See
https://protobuf.dev/programming-guides/encoding and onnx.proto.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from blink_persistent.engines.onnx_cpu.metadata import ModelShape
from blink_server.errors import InvalidModel, Problem

_GRAPH, _METADATA = 7, 14  # fields of ModelProto
_KEY, _VALUE = 1, 2  # fields of StringStringEntryProto
_VARINT, _BYTES = 0, 2  # wire types
_FIXED = {1: 8, 5: 4}  # bytes of those of one size
_LONGEST_VARINT = 10  # bytes
_LONGEST_METADATA = 1 << 20  # bytes: more is no metadata of this builder's


def read_model_shape(path: Path) -> ModelShape:
    """The shape of the graph that `graph.write_graph` wrote to `path`; its files are all there.

    Raises `InvalidModel` where the file or its weights' file is cut short or missing, or is not
    what this version of the builder writes.
    """
    try:
        with path.open("rb") as file:
            metadata = _metadata(file)
    except OSError as error:
        raise _invalid(path, f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise _invalid(path, f"must be a whole ONNX model: {error}") from None
    shape = ModelShape.from_metadata(metadata, path)
    _require_weights(path.with_name(f"{path.name}.data"), shape.weight_file_bytes)
    return shape


def _require_weights(path: Path, size: int) -> None:
    if not size:
        return
    try:
        found = path.stat().st_size
    except OSError as error:
        raise _invalid(path, f"cannot be read: {error.strerror}") from None
    if found != size:
        raise _invalid(path, f"has {found} bytes; must have {size}, as the import wrote it")


def _metadata(file: BinaryIO) -> dict[str, str]:
    """`metadata_props` of the message in a file. Raises ValueError where it is no whole message."""
    metadata, numbers = {}, set()
    for number, size in _fields(file, os.fstat(file.fileno()).st_size):
        numbers.add(number)
        if number == _METADATA:
            entry = _entry(file, size)
            metadata[entry.get(_KEY, "")] = entry.get(_VALUE, "")
    if _GRAPH not in numbers:
        raise ValueError("it has no graph")
    return metadata


def _entry(file: BinaryIO, size: int) -> dict[int, str]:
    if size > _LONGEST_METADATA:
        raise ValueError(f"its metadata has an entry of {size} bytes")
    fields = _fields(file, file.tell() + size)
    return {number: file.read(length).decode() for number, length in fields}


def _fields(file: BinaryIO, end: int) -> Iterator[tuple[int, int]]:
    """(number, bytes) of each field from here to `end`; the file then stands at its first byte.

    Raises ValueError for a field that goes beyond `end`, or that is none.
    """
    while file.tell() < end:
        tag = _varint(file)
        size = _size(file, tag & 7)
        following = file.tell() + size
        if following > end:
            raise ValueError(f"it ends {following - end} bytes too early")
        yield tag >> 3, size
        file.seek(following)


def _size(file: BinaryIO, wire_type: int) -> int:
    if wire_type == _BYTES:
        return _varint(file)
    if wire_type == _VARINT:
        _varint(file)
        return 0
    if wire_type in _FIXED:
        return _FIXED[wire_type]
    raise ValueError("it is not protobuf")


def _varint(file: BinaryIO) -> int:
    value = 0
    for place in range(_LONGEST_VARINT):
        byte = file.read(1)
        if not byte:
            raise ValueError("it ends within a field")
        value |= (byte[0] & 0x7F) << (7 * place)
        if byte[0] < 0x80:
            return value
    raise ValueError("it is not protobuf")


def _invalid(path: Path, expected: str) -> InvalidModel:
    return InvalidModel([Problem(path, "", None, expected)])
