"""What a built graph says of itself, in the ONNX file's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from blink_server.errors import InvalidModel, Problem

Compute = Literal["int8", "fp32"]
"""What matrices are multiplied in: `build_graph` says what each means."""

COMPUTES: tuple[Compute, ...] = get_args(Compute)

_KEY = "blink"
_FORMAT = 1  # of the graph's inputs, outputs and metadata


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What whoever runs the graph must know: its sizes, and what it was built for."""

    layers: int
    kv_heads: int
    head_dim: int
    vocabulary_size: int
    context_length: int  # the largest that the graph can serve
    compute: Compute = "int8"  # of graphs that do not say
    weight_file_bytes: int = 0  # of "<name>.data" beside the graph; 0: there is none, or not said

    @property
    def entry_bytes(self) -> int:
        """KV memory of one token of one row: float32 keys and values of all layers."""
        return self.layers * 2 * self.kv_heads * self.head_dim * 4

    def to_metadata(self) -> dict[str, str]:
        return {_KEY: json.dumps({"format": _FORMAT, **asdict(self)})}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], path: Path) -> ModelShape:
        """Raises `InvalidModel`, naming `path`, if this version of the builder did not write it."""
        description = json.loads(metadata.get(_KEY, "{}"))
        found = description.pop("format", None)
        if found != _FORMAT:
            expected = f"must be {_FORMAT}: build the engine file again with `blink-server import`"
            raise InvalidModel([Problem(path, "metadata format", found, expected)])
        return cls(**description)
