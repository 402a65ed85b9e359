"""A checkpoint's tensors as a network's constants: mapped from the weight file, not copied.

The file holds tensors in the order of `Architecture.tensor_shapes`, so that projections with one
input, and all experts of a layer, lie behind each other and are one constant without a copy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from blink_persistent.engines.cuda.weight_file import read_stored_architecture
from blink_server.importers.checkpoint import Architecture

Array = npt.NDArray[Any]


class NetworkWeights:
    """Tensors by their checkpoint names, all bfloat16 or all float32, C-contiguous.

    A network points to their memory until a plan was built: keep this object as long.
    """

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self._tensors = tensors
        self._copies: dict[tuple[str, ...], Array] = {}

    @property
    def dtype(self) -> np.dtype[Any]:
        """bfloat16 or float32."""
        return next(iter(self._tensors.values())).dtype

    def __getitem__(self, name: str) -> Array:
        return self._tensors[name]

    def stacked(self, *names: str) -> Array:
        """Tensors of one width below each other, [all rows, ...]: a view where they lie so."""
        parts = [self._tensors[name] for name in names]
        shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
        return self._joined(names).reshape(shape)

    def groups(self, groups: list[list[str]]) -> Array:
        """The elements of groups of tensors of equal sizes, [groups, elements of one]."""
        names = tuple(name for group in groups for name in group)
        return self._joined(names).reshape(len(groups), -1)

    def _joined(self, names: tuple[str, ...]) -> Array:
        """All elements, one tensor after the other."""
        parts = [self._tensors[name] for name in names]
        size = sum(part.size for part in parts)
        ends = [part.ctypes.data + part.nbytes for part in parts]
        if all(part.ctypes.data == end for part, end in zip(parts[1:], ends, strict=False)):
            return np.lib.stride_tricks.as_strided(
                parts[0].reshape(-1), (size,), (parts[0].itemsize,), writeable=False
            )
        if names not in self._copies:
            self._copies[names] = np.concatenate([part.reshape(-1) for part in parts])
        return self._copies[names]


def map_weights(path: Path) -> tuple[Architecture, NetworkWeights]:
    """What the engine `cuda`'s weight file holds; its memory is mapped and read as it is used.

    Raises InvalidModel as `read_stored_architecture` does.
    """
    architecture = read_stored_architecture(path)
    data = np.memmap(path, np.uint8, mode="r")
    header_bytes = int.from_bytes(data[:8].tobytes(), "little")
    entries = json.loads(data[8 : 8 + header_bytes].tobytes())
    values = data[8 + header_bytes :].view(ml_dtypes.bfloat16)

    def tensor(name: str, shape: tuple[int, ...]) -> Array:
        first = entries[name]["data_offsets"][0] // values.itemsize
        return np.asarray(values[first : first + math.prod(shape)].reshape(shape))

    shapes = architecture.tensor_shapes()
    return architecture, NetworkWeights({name: tensor(name, shapes[name]) for name in shapes})
