"""A small writer of ONNX graphs: nodes in order, initializers, unique value names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from blink_persistent.engines.onnx_cpu.weight_file import WeightFile

CONTRIB = "com.microsoft"
_OPSET, _IR_VERSION = 21, 10


class GraphWriter:
    """Collects one graph. Values are named by what makes them: "layers.3/gate_up"."""

    def __init__(self, name: str, weight_file: WeightFile | None = None) -> None:
        """Large constants go to `weight_file`, where there is one, instead of into the graph."""
        self._graph = onnx.GraphProto(name=name)
        self._weight_file = weight_file
        self._scope = ""
        self._made: set[str] = set()

    def scope(self, name: str) -> None:
        """Prefix the values made from here on with `name`."""
        self._scope = f"{name}/" if name else ""

    def input(self, name: str, element_type: int, shape: Sequence[int | str]) -> str:
        self._graph.input.append(helper.make_tensor_value_info(name, element_type, shape))
        return name

    def output(self, name: str, element_type: int, shape: Sequence[int | str]) -> str:
        self._graph.output.append(helper.make_tensor_value_info(name, element_type, shape))
        return name

    def constant(self, name: str, value: npt.NDArray[np.generic]) -> str:
        """An initializer, shared by all who ask for the same name."""
        if name not in self._made:
            self._made.add(name)
            stored = self._weight_file.write(name, value) if self._weight_file else None
            self._graph.initializer.append(stored or numpy_helper.from_array(value, name))
        return name

    def add(
        self,
        operator: str,
        inputs: Sequence[str],
        name: str,
        *,
        outputs: Sequence[str] | None = None,
        domain: str = "",
        **attributes: int | float | str,
    ) -> str:
        """Append a node and return its first output; "" leaves an optional input or output out.

        `outputs` are full names; without them the one output is `name` within the scope.
        Raises `ValueError` if a value of that name exists.
        """
        made = list(outputs) if outputs is not None else [f"{self._scope}{name}"]
        for value in filter(None, made):
            if value in self._made:
                raise ValueError(f"two nodes make the value {value!r}")
            self._made.add(value)
        self._graph.node.append(
            helper.make_node(
                operator, inputs, made, f"{self._scope}{name}", None, domain, None, **attributes
            )
        )
        return made[0]

    def finish(self, metadata: Mapping[str, str]) -> onnx.ModelProto:
        """The model. The writer must not be used afterwards."""
        model = helper.make_model(
            self._graph,
            opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid(CONTRIB, 1)],
            producer_name="blink-server",
            ir_version=_IR_VERSION,
        )
        helper.set_model_props(model, dict(metadata))
        return model


__all__ = ["CONTRIB", "GraphWriter", "TensorProto"]
