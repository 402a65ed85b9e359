"""TensorRT's own types, for type checkers.

The libraries come without stubs; `tools/check_tensorrt_types.py` makes some of each version's
bindings, and checks this package's calls against them. Without stubs all of these are `Any`.
`Trt` is the module itself, which is passed around: the stubs have a class for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorrt import Builder, DataType, ITensor, Trt
    from tensorrt import INetworkDefinition as Network

    Tensor = ITensor
else:
    Builder = DataType = Network = Tensor = Trt = Any

__all__ = ["Builder", "DataType", "Network", "Tensor", "Trt"]
