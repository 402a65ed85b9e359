"""What each TensorRT layer computes, in numpy: the operations of `trt_interpreter`.

Each takes the module, the layer as its own class, and its inputs; it returns the outputs before
they are rounded to their tensors' types. Floats are computed in float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Operation = Callable[[Any, Any, Sequence[Array]], Sequence[Array]]

_ELEMENTWISE: Mapping[str, Callable[[Array, Array], Array]] = {
    "SUM": np.add,
    "SUB": np.subtract,
    "PROD": np.multiply,
    "DIV": np.divide,
    "FLOOR_DIV": np.floor_divide,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "AND": np.logical_and,
    "OR": np.logical_or,
    "EQUAL": np.equal,
    "LESS": np.less,
    "GREATER": np.greater,
}
_UNARY: Mapping[str, Callable[[Array], Array]] = {"SQRT": np.sqrt, "NOT": np.logical_not}
_REDUCE: Mapping[str, Callable[..., Array]] = {"SUM": np.sum, "AVG": np.mean, "MAX": np.max}


def _elementwise(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    a, b = inputs
    if a.ndim != b.ndim:
        raise ValueError(f"{layer.name} has inputs of {a.ndim} and {b.ndim} dimensions")
    return [_ELEMENTWISE[layer.op.name](a, b)]


def _unary(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    return [_UNARY[layer.op.name](inputs[0])]


def _reduce(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    axes = _axes(layer.axes, inputs[0].ndim)
    return [_REDUCE[layer.op.name](inputs[0], axis=axes, keepdims=layer.keep_dims)]


def _activation(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    if layer.type != trt.ActivationType.SIGMOID:
        raise NotImplementedError(f"{layer.name} is the activation {layer.type.name}")
    return [1 / (1 + np.exp(-inputs[0]))]


def _softmax(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    return [softmax(inputs[0], _axes(layer.axes, inputs[0].ndim)[0])]


def _top_k(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    """The first of equal ones comes first; TensorRT promises no order for them."""
    (axis,) = _axes(layer.axes, inputs[0].ndim)
    if layer.op != trt.TopKOperation.MAX:
        raise NotImplementedError(f"{layer.name} seeks the smallest")
    order = np.argsort(-inputs[0], axis=axis, kind="stable")
    best = np.take(order, np.arange(layer.k), axis)
    return [np.take_along_axis(inputs[0], best, axis), best]


def _matrix_multiply(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    turned = [
        x.swapaxes(-1, -2) if op == trt.MatrixOperation.TRANSPOSE else x
        for x, op in zip(inputs, (layer.op0, layer.op1), strict=True)
    ]
    return [turned[0] @ turned[1]]


def _gather(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    values, indices = inputs
    size = values.shape[layer.axis]
    if indices.size and not (indices.min() >= 0 and indices.max() < size):
        raise IndexError(f"{layer.name} reads beyond its {size} rows: {indices.ravel()}")
    return [np.take(values, indices, layer.axis)]


def _shuffle(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    x = inputs[0].transpose(_order(layer.first_transpose, inputs[0].ndim))
    x = x.reshape(tuple(layer.reshape_dims))
    return [x.transpose(_order(layer.second_transpose, x.ndim))]


def _slice(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    shape = inputs[1] if len(inputs) > 1 else layer.shape
    ends = [start + size for start, size in zip(layer.start, shape, strict=True)]
    if any(end > size for end, size in zip(ends, inputs[0].shape, strict=True)):
        raise IndexError(f"{layer.name} cuts {ends} from {inputs[0].shape}")
    return [inputs[0][tuple(slice(a, b) for a, b in zip(layer.start, ends, strict=True))]]


def _concatenation(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    return [np.concatenate(inputs, layer.axis)]


def _fill(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    (size,), start, (step,) = inputs
    return [start + step * np.arange(size)]


def _rotary_embedding(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    """Input [batch, heads, tokens, head_dim], positions [batch, tokens]; half-split."""
    x, cos, sin, positions = inputs
    if layer.interleaved or layer.rotary_embedding_dim != x.shape[-1]:
        raise NotImplementedError(f"{layer.name} turns otherwise than whole heads, half-split")
    turn_cos, turn_sin = cos[positions][:, None], sin[positions][:, None]
    first, second = np.split(x, 2, axis=-1)
    turned = [first * turn_cos - second * turn_sin, second * turn_cos + first * turn_sin]
    return [np.concatenate(turned, axis=-1)]


def _kv_cache_update(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    """Packed: batch row i has the tokens [lengths[i], lengths[i + 1]) of `update`."""
    cache, update, write_at, lengths = inputs
    if layer.update_form != trt.AttentionIOForm.PACKED_NHD:
        raise NotImplementedError(f"{layer.name} takes padded updates")
    written = cache.copy()
    for row, (first, end) in enumerate(itertools.pairwise(lengths)):
        at = write_at[row]
        if not 0 <= at <= at + end - first <= cache.shape[2]:
            raise IndexError(f"{layer.name} writes {end - first} entries at {at} of row {row}")
        written[row, :, at : at + end - first] = update[first:end].swapaxes(0, 1)
    return [written]


def _attention(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    """Padded [batch, heads, tokens, head_dim], a mask that is added; TensorRT does not scale."""
    attention = layer.attention
    q, k, v, mask = inputs
    padded = trt.AttentionIOForm.PADDED_BHND
    plain = attention.query_form == attention.key_value_form == padded
    if mask.dtype != np.float32 or not plain or attention.causal_kind != trt.CausalMaskKind.NONE:
        raise NotImplementedError(f"{layer.name} attends otherwise than padded, with a mask added")
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    return [softmax(q @ k.swapaxes(-1, -2) + mask, -1) @ v]


def _select(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    condition, a, b = inputs
    if condition.dtype != np.bool_ or len({x.ndim for x in inputs}) > 1:
        raise ValueError(f"{layer.name} selects {a.shape} or {b.shape} by {condition.shape}")
    return [np.where(condition, a, b)]


def _unsqueeze(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    return [np.expand_dims(inputs[0], tuple(inputs[1]))]


def softmax(x: Array, axis: int) -> Array:
    """Along one axis."""
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


def _moe(trt: Any, layer: Any, inputs: Sequence[Array]) -> Sequence[Array]:
    """Input [batch, tokens, hidden]; matrices [experts, in_features, out_features]."""
    x, chosen, shares, gate, up, down = inputs
    mixed = np.zeros_like(x)
    for place in np.ndindex(chosen.shape):
        expert, token = chosen[place], x[place[:2]]
        inner = token @ gate[expert]
        inner = inner / (1 + np.exp(-inner)) * (token @ up[expert])
        mixed[place[:2]] += shares[place] * (inner @ down[expert])
    return [mixed]


def _axes(bits: int, rank: int) -> tuple[int, ...]:
    return tuple(axis for axis in range(rank) if bits >> axis & 1)


def _order(permutation: Any, rank: int) -> tuple[int, ...]:
    return tuple(permutation)[:rank]


OPERATIONS: Mapping[str, tuple[str, Operation]] = {
    "ACTIVATION": ("IActivationLayer", _activation),
    "ATTENTION_INPUT": ("IAttentionInputLayer", _attention),
    "ATTENTION_OUTPUT": ("IAttentionOutputLayer", lambda trt, layer, inputs: inputs),
    "CAST": ("ICastLayer", lambda trt, layer, inputs: inputs),
    "CONCATENATION": ("IConcatenationLayer", _concatenation),
    "ELEMENTWISE": ("IElementWiseLayer", _elementwise),
    "FILL": ("IFillLayer", _fill),
    "GATHER": ("IGatherLayer", _gather),
    "KV_CACHE_UPDATE": ("IKVCacheUpdateLayer", _kv_cache_update),
    "MATRIX_MULTIPLY": ("IMatrixMultiplyLayer", _matrix_multiply),
    "MOE": ("IMoELayer", _moe),
    "REDUCE": ("IReduceLayer", _reduce),
    "ROTARY_EMBEDDING": ("IRotaryEmbeddingLayer", _rotary_embedding),
    "SELECT": ("ISelectLayer", _select),
    "SHAPE": ("IShapeLayer", lambda trt, layer, inputs: [np.array(inputs[0].shape)]),
    "SHUFFLE": ("IShuffleLayer", _shuffle),
    "SLICE": ("ISliceLayer", _slice),
    "SOFTMAX": ("ISoftMaxLayer", _softmax),
    "TOPK": ("ITopKLayer", _top_k),
    "UNARY": ("IUnaryLayer", _unary),
    "UNSQUEEZE": ("IUnsqueezeLayer", _unsqueeze),
}
"""By LayerType: the class of the layer, and what it computes."""
