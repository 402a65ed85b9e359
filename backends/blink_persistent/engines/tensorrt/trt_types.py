"""TensorRT's own types, for type checkers.

The libraries come without stubs; `tools/check_tensorrt_types.py` makes some of each version's
bindings, and checks this package's calls against them. Without stubs all of these are `Any`.
`Trt` is the module itself, which is passed around: the stubs have a class for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorrt import Builder, DataType, ITensor, Trt
    from tensorrt import IBuilderConfig as BuilderConfig
    from tensorrt import ICudaEngine as Engine
    from tensorrt import IExecutionContext as Context
    from tensorrt import INetworkDefinition as Network
    from tensorrt import IOptimizationProfile as Profile

    Tensor = ITensor
else:
    Builder = BuilderConfig = Context = DataType = Engine = Network = Profile = Any
    Tensor = Trt = Any

__all__ = [
    "Builder",
    "BuilderConfig",
    "Context",
    "DataType",
    "Engine",
    "Network",
    "Profile",
    "Tensor",
    "Trt",
]
