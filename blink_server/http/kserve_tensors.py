"""Tensors of KServe's v2 protocol, as JSON and in the binary form of Triton's clients.

With the header Inference-Header-Content-Length a body is that much JSON, then the tensors' bytes in
the order of the inputs. An element of BYTES is its length (32 bits, little endian) and its bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blink_server.errors import InvalidRequest
from blink_server.http.json_values import parse

HEADER = "Inference-Header-Content-Length"

_LENGTH = struct.Struct("<I")
_DTYPES = {
    "BOOL": "?",
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "FP32": "<f4",
    "FP64": "<f8",
}


def _whole_number(dtype: str) -> tuple[Callable[[Any], bool], str]:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return (
        lambda value: type(value) is int and low <= value <= high,
        f"whole numbers from {low} to {high}",
    )


_NUMBERS = (lambda value: type(value) in (int, float), "numbers")
_ELEMENTS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "BYTES": (lambda value: isinstance(value, str), "texts"),
    "BOOL": (lambda value: isinstance(value, bool), "true and false"),
    **{name: _whole_number(dtype) for name, dtype in _DTYPES.items() if "INT" in name},
    "FP32": _NUMBERS,
    "FP64": _NUMBERS,
}
"""What JSON may hold of each datatype, and its name."""

DATATYPES = tuple(_ELEMENTS)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input: `values` are its elements in row-major order; those of BYTES are text."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Sequence[Any]


def split_body(body: bytes, header_length: str | None) -> tuple[dict[str, Any], bytes]:
    """The JSON of a body, and the bytes after it. Raises InvalidRequest."""
    length = len(body)
    if header_length is not None:
        if not header_length.isdecimal() or int(header_length) > length:
            raise InvalidRequest(f"{HEADER} is {header_length!r}; it must be the JSON's length")
        length = int(header_length)
    try:
        document = parse(body[:length])
    except ValueError as error:
        raise InvalidRequest(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(document, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return document, body[length:]


def read_inputs(document: Mapping[str, Any], binary: bytes) -> dict[str, Tensor]:
    """The inputs of a request by name. Raises InvalidRequest naming the one that is wrong."""
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(each, dict) for each in inputs):
        raise InvalidRequest("inputs must be a list of tensors", param="inputs")
    tensors: dict[str, Tensor] = {}
    offset = 0
    for each in inputs:
        size = _binary_size(each)
        if offset + size > len(binary):
            raise _wrong(each, f"has {size} bytes, of which {len(binary) - offset} came")
        tensor = _read(each, binary[offset : offset + size])
        offset += size
        if tensor.name in tensors:
            raise _wrong(each, "is there twice")
        tensors[tensor.name] = tensor
    if offset != len(binary):
        raise InvalidRequest(f"{len(binary) - offset} bytes of the body belong to no input")
    return tensors


def _binary_size(document: Mapping[str, Any]) -> int:
    parameters = document.get("parameters", {})
    size = parameters.get("binary_data_size", 0) if isinstance(parameters, Mapping) else None
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise _wrong(document, "has parameters that cannot be read")
    return size


def _read(document: Mapping[str, Any], binary: bytes) -> Tensor:
    name, shape, datatype = (document.get(field) for field in ("name", "shape", "datatype"))
    if not isinstance(name, str) or not isinstance(datatype, str):
        raise _wrong(document, "needs a name and a datatype")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise _wrong(document, "needs a shape: a list of whole numbers")
    if datatype not in _ELEMENTS:
        known = ", ".join(DATATYPES)
        raise _wrong(document, f"has the datatype {datatype[:40]!r}; it must be one of {known}")
    if "data" in document:
        values = list(_flat(document["data"]))
        fits, elements = _ELEMENTS[datatype]
        if not all(map(fits, values)):
            raise _wrong(document, f"of datatype {datatype} must hold {elements}")
    else:
        values = _decode(document, datatype, binary)
    if len(values) != math.prod(shape):
        raise _wrong(document, f"has {len(values)} elements, its shape {shape} has others")
    return Tensor(name, datatype, tuple(shape), values)


def _flat(data: Any) -> Sequence[Any]:
    if not isinstance(data, list):
        return [data]
    return [value for each in data for value in _flat(each)]


def _decode(document: Mapping[str, Any], datatype: str, binary: bytes) -> list[Any]:
    if datatype == "BYTES":
        return _decode_texts(document, binary)
    dtype = _DTYPES[datatype]
    if len(binary) % np.dtype(dtype).itemsize:
        raise _wrong(document, f"has {len(binary)} bytes, which are no whole elements")
    values: list[Any] = np.frombuffer(binary, dtype).tolist()
    return values


def _decode_texts(document: Mapping[str, Any], binary: bytes) -> list[str]:
    texts, offset = [], 0
    while offset < len(binary):
        start = offset + _LENGTH.size
        if start > len(binary):
            raise _wrong(document, "ends within an element's length")
        offset = start + _LENGTH.unpack_from(binary, offset)[0]
        if offset > len(binary):
            raise _wrong(document, "ends within an element")
        try:
            texts.append(binary[start:offset].decode())
        except UnicodeDecodeError:
            raise _wrong(document, "holds text that is not UTF-8") from None
    return texts


def encode_texts(texts: Sequence[str]) -> bytes:
    """The binary form of a tensor of BYTES."""
    encoded = [text.encode() for text in texts]
    return b"".join(_LENGTH.pack(len(each)) + each for each in encoded)


def _wrong(document: Mapping[str, Any], what: str) -> InvalidRequest:
    return InvalidRequest(f"the input {document.get('name')!r} {what}", param="inputs")
