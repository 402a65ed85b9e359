"""A graph's large tensors in a file of their own, written as they are made.

None of them stays in memory while the graph is built, the graph's own message stays far below
protobuf's limit of 2 GiB, and ONNX Runtime maps the file instead of copying it.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

_SMALLEST = 64 << 10  # bytes; what is smaller is kept in the graph
_ALIGNMENT = 4096  # of a tensor's place, so that it can be mapped


class WeightFile:
    """Open within a `with` statement; no file is made where no tensor is large."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def names(self) -> list[str]:
        """The file's name, if it was made."""
        return [] if self._file is None else [self._path.name]

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return 0 if self._file is None else self._file.tell()

    def write(self, name: str, value: npt.NDArray[np.generic]) -> TensorProto | None:
        """Append a tensor; returns the initializer that refers to it, None for a small one."""
        if value.nbytes < _SMALLEST:
            return None
        if self._file is None:
            self._file = self._path.open("wb")
        place = -(-self._file.tell() // _ALIGNMENT) * _ALIGNMENT
        self._file.seek(place)
        self._file.write(np.ascontiguousarray(value).data)
        tensor = TensorProto(
            name=name,
            dims=value.shape,
            data_type=helper.np_dtype_to_tensor_dtype(value.dtype),
            data_location=TensorProto.EXTERNAL,
        )
        where = {"location": self._path.name, "offset": place, "length": value.nbytes}
        for key, entry in where.items():
            tensor.external_data.add(key=key, value=str(entry))
        return tensor
