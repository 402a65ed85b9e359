"""The interpreter's operations mean what ONNX says of the operators that TensorRT maps to them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from blink_persistent.testing.trt_operations import OPERATIONS

Array = npt.NDArray[Any]

# The members that the operations compare with, instead of the module's.
TRT = SimpleNamespace(
    AttentionIOForm=SimpleNamespace(PADDED_BHND="padded", PACKED_NHD="packed"),
    CausalMaskKind=SimpleNamespace(NONE="none"),
)


def by_onnx(operator: str, inputs: list[Array], **attributes: Any) -> Array:
    """The first output of one operator of the newest opset."""
    if not onnx.defs.has(operator):
        pytest.skip(f"this onnx has no {operator}")
    names = [f"x{i}" for i in range(len(inputs))]
    node = helper.make_node(operator, names, ["y"], **attributes)
    kinds = [helper.np_dtype_to_tensor_dtype(x.dtype) for x in inputs]
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, kind, x.shape)
            for name, kind, x in zip(names, kinds, inputs, strict=True)
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    found: Any = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    return np.asarray(found[0])


def by_interpreter(kind: str, inputs: list[Array], **members: Any) -> Array:
    _, operation = OPERATIONS[kind]
    return operation(TRT, SimpleNamespace(name="layer", **members), inputs)[0]


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_rotary_embedding() -> None:
    x, positions = normal(5, 3, 1, 8), np.array([[4], [0], [9], [9], [2]])
    cos, sin = normal(10, 4), normal(10, 5)[:, :4].copy()
    found = by_interpreter(
        "ROTARY_EMBEDDING", [x, cos, sin, positions], interleaved=False, rotary_embedding_dim=8
    )
    np.testing.assert_allclose(
        found, by_onnx("RotaryEmbedding", [x, cos, sin, positions]), rtol=1e-6, atol=1e-6
    )


def test_attention_with_grouped_heads_and_an_added_mask() -> None:
    q, k, v = normal(1, 4, 3, 8), normal(1, 2, 6, 8), normal(1, 2, 6, 7)
    mask = np.where(normal(1, 1, 3, 6) > 0.5, -1e30, 0).astype(np.float32)
    plain = SimpleNamespace(query_form="padded", key_value_form="padded", causal_kind="none")
    found = by_interpreter("ATTENTION_INPUT", [q, k, v, mask], attention=plain)
    expected = by_onnx("Attention", [q, k, v, mask], scale=1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_kv_cache_updates_of_equal_lengths() -> None:
    """ONNX knows the padded form; packed tokens of equal counts are the same, row after row."""
    cache, update = normal(4, 2, 6, 3), normal(4, 2, 2, 3)
    write_at = np.array([0, 4, 1, 3])
    packed = update.swapaxes(1, 2).reshape(8, 2, 3)
    lengths = np.arange(0, 9, 2)
    found = by_interpreter(
        "KV_CACHE_UPDATE", [cache, packed, write_at, lengths], update_form="packed"
    )
    np.testing.assert_array_equal(found, by_onnx("TensorScatter", [cache, update, write_at]))


def test_kv_cache_updates_beyond_a_row_are_refused() -> None:
    cache, update = normal(2, 1, 4, 3), normal(2, 1, 3)
    with pytest.raises(IndexError, match="writes 2 entries at 3 of row 1"):
        by_interpreter(
            "KV_CACHE_UPDATE",
            [cache, update, np.array([0, 3]), np.array([0, 0, 2])],
            update_form="packed",
        )
