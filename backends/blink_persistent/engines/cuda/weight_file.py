"""The engine's weights on disk: one safetensors file of a checkpoint's tensors in bfloat16.

Its metadata says the architecture, so that the file is all that the engine needs of a model.
Tensors are written as they are read, one at a time, so a model larger than memory can be built.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from blink_server.errors import InvalidModel, Problem
from blink_server.importers.checkpoint import Architecture, Checkpoint, QuantizedTensor, Tensor

WEIGHT_FILE = "model.safetensors"
_KEY = "blink"
_FORMAT = 1
_BYTES = 2  # of a value
_HEADER_ALIGNMENT = 8
_VALUES_AT_ONCE = 1 << 20


@dataclass(slots=True)
class Rounding:
    """What rounding to bfloat16 did: sums of squares of the values, and of their errors."""

    squares: float = 0.0
    error_squares: float = 0.0

    def add(self, values: npt.NDArray[np.float32], rounded: npt.NDArray[Any]) -> None:
        """Values as they were, and as they are written."""
        error = rounded.astype(np.float32) - values
        self.squares += float(np.vdot(values, values))
        self.error_squares += float(np.vdot(error, error))

    def __str__(self) -> str:
        if not self.error_squares:
            return "as they were, exactly"
        share = math.sqrt(self.error_squares / self.squares)
        return f"error {share:.2%} of the weights (root mean square)"


def write_weights(
    checkpoint: Checkpoint, path: Path, progress: Callable[[float], None] = lambda fraction: None
) -> Rounding:
    """Write every tensor of the checkpoint's architecture. `progress` hears the part done.

    Raises InvalidModel where a value is not finite or becomes so.
    """
    shapes = checkpoint.architecture.tensor_shapes()
    entries: dict[str, Any] = {"__metadata__": {_KEY: _describe(checkpoint.architecture)}}
    place = 0
    for name, shape in shapes.items():
        end = place + _BYTES * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [place, end]}
        place = end
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % _HEADER_ALIGNMENT)
    rounding = Rounding()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for done, name in enumerate(shapes):
            progress(done / len(shapes))
            for values in _parts(checkpoint.tensor(name)):
                rounded = values.astype(ml_dtypes.bfloat16)
                if not np.isfinite(rounded).all():
                    raise _not_finite(checkpoint, name)
                rounding.add(values, rounded)
                file.write(rounded.tobytes())
    progress(1.0)
    return rounding


def read_stored_architecture(path: Path) -> Architecture:
    """What a file of `write_weights` is the weights of.

    Raises InvalidModel for a file that is missing, damaged, of another format, or not whole.
    """
    if not path.is_file():
        expected = "is missing: import the model for the engine 'cuda', or use random weights"
        raise InvalidModel([Problem(path, "", None, expected)])
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        expected = f"is not a whole safetensors file ({error})"
        raise InvalidModel([Problem(path, "", None, expected)]) from error
    description = json.loads(metadata.get(_KEY, "{}"))
    if description.pop("format", None) != _FORMAT:
        expected = "was not written by this engine: import the model again"
        raise InvalidModel([Problem(path, "metadata", None, expected)])
    divisors = tuple(description.pop("rope_divisors"))
    architecture = Architecture(**description, rope_divisors=divisors)
    wanted = architecture.tensor_shapes()
    if wrong := [name for name in wanted | found if wanted.get(name) != found.get(name)]:
        expected = f"must have the shape {wanted.get(wrong[0])}: import the model again"
        raise InvalidModel([Problem(path, wrong[0], found.get(wrong[0]), expected)])
    return architecture


def _describe(architecture: Architecture) -> str:
    return json.dumps({"format": _FORMAT, **asdict(architecture)})


def _parts(tensor: Tensor) -> Iterator[npt.NDArray[np.float32]]:
    """A tensor's values, about `_VALUES_AT_ONCE` each: no second copy is made of a large one."""
    rows_at_once = max(1, _VALUES_AT_ONCE // math.prod(tensor.shape[1:]))
    for start in range(0, tensor.shape[0], rows_at_once):
        rows = slice(start, start + rows_at_once)
        if isinstance(tensor, QuantizedTensor):
            codes, scale, minimum = tensor.codes[rows], tensor.scale[rows], tensor.minimum[rows]
            part = QuantizedTensor(tensor.bits, tensor.block_size, codes, scale, minimum)
            yield part.dequantize()
        else:
            yield tensor[rows]


def _not_finite(checkpoint: Checkpoint, name: str) -> InvalidModel:
    file = Path(str(checkpoint.source.get("file", "checkpoint")))
    return InvalidModel([Problem(file, name, None, "holds values that are not finite numbers")])
