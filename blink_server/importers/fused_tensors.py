"""Tensors of a file that hold several canonical ones, as Phi 3's projections do, row by row.

Where only a part of each head turns, that part's rows are moved as well: a file has the elements
that turn first and half-split among themselves, the canonical form has all of a head half-split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from blink_server.importers.checkpoint import Architecture
from blink_server.importers.safetensors_files import StoredTensor

_FUSED = {
    "self_attn.qkv_proj.weight": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
    "mlp.gate_up_proj.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
}
_TURNING = ("self_attn.q_proj.weight", "self_attn.k_proj.weight")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Some rows of a stored tensor, `order` among them: a canonical tensor of its own."""

    tensor: StoredTensor
    rows: slice
    order: npt.NDArray[np.intp] | None = None

    @property
    def file(self) -> Path:
        return self.tensor.file

    def read(self) -> npt.NDArray[np.float32]:
        """As `StoredTensor.read`."""
        values = self.tensor.read(self.rows)
        return values if self.order is None else values[self.order]


def stored_shapes(shapes: Mapping[str, Shape], found: Mapping[str, object]) -> dict[str, Shape]:
    """The shapes that a file must have whose tensors are called as in `found`.

    `shapes` are those of the canonical tensors.
    """
    stored = dict(shapes)
    for name, parts in _fused(shapes, found):
        stored[name] = (sum(stored.pop(part)[0] for part in parts), *shapes[parts[0]][1:])
    return stored


def canonical_tensors(
    architecture: Architecture, stored: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor | StoredRows]:
    """The canonical tensors of a file whose shapes are `stored_shapes`."""
    shapes = architecture.tensor_shapes()
    tensors: dict[str, StoredTensor | StoredRows] = dict(stored)
    for name, parts in _fused(shapes, stored):
        tensors.pop(name)
        start = 0
        for part in parts:
            rows = slice(start, start + shapes[part][0])
            order = head_order(architecture, shapes[part][0]) if part.endswith(_TURNING) else None
            tensors[part] = StoredRows(stored[name], rows, order)
            start = rows.stop
    return tensors


def head_order(architecture: Architecture, rows: int) -> npt.NDArray[np.intp] | None:
    """Which row of a file's queries or keys each canonical row is; None where they are the same."""
    half, turning = architecture.head_dim // 2, architecture.turning_pairs
    if turning == half:
        return None
    pair = np.arange(half)
    first = np.where(pair < turning, pair, pair + turning)
    second = np.where(pair < turning, pair + turning, pair + half)
    heads = np.arange(0, rows, architecture.head_dim)[:, None]
    return np.asarray(heads + np.concatenate([first, second])).reshape(-1)


def _fused(
    shapes: Mapping[str, Shape], found: Mapping[str, object]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names of the fused tensors that are found, with those of their parts."""
    for name in found:
        for fused, parts in _FUSED.items():
            names = tuple(name.removesuffix(fused) + part for part in parts)
            if name.endswith(f".{fused}") and all(part in shapes for part in names):
                yield name, names
