"""A checkpoint that lives in memory, and random ones: for tests of what reads checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_server.importers.checkpoint import Architecture, QuantizedTensor, Tensor


@dataclass(slots=True)
class MemoryCheckpoint:
    """A `blink_server.importers.checkpoint.Checkpoint` made of given tensors."""

    architecture: Architecture
    tensors: dict[str, Tensor]
    eos_token_ids: tuple[int, ...] = (0,)
    bos_token_id: int | None = None
    tokenizer_json: str = "{}"
    chat_template: str | None = None
    source: Mapping[str, Any] = field(default_factory=lambda: {"file": "memory"})

    def tensor_names(self) -> list[str]:
        return list(self.tensors)

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name]

    def dequantized(self) -> dict[str, npt.NDArray[np.float32]]:
        """Every tensor as float32."""
        return {
            name: tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
            for name, tensor in self.tensors.items()
        }


def tiny_architecture(**changes: Any) -> Architecture:
    """Two layers with grouped heads; `changes` replaces fields of `Architecture`."""
    sizes: dict[str, Any] = {
        "family": "llama",
        "layers": 2,
        "hidden_size": 64,
        "intermediate_size": 96,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "vocabulary_size": 101,
        "context_length": 64,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "tied_embeddings": True,
    }
    return Architecture(**(sizes | changes))


def random_checkpoint(
    architecture: Architecture, *, seed: int = 0, bits: int | None = None
) -> MemoryCheckpoint:
    """Random weights of variance 1 / columns: float32, or quantized to `bits` bits in blocks of 32.

    Embeddings and heads are quantized to 8 bits without a minimum, as files usually have them.
    """
    random = np.random.default_rng(seed)
    tensors: dict[str, Tensor] = {}
    for name, shape in architecture.tensor_shapes().items():
        if len(shape) == 1:
            low, high = (-1.0, 1.0) if name.endswith(".bias") else (0.5, 1.5)
            tensors[name] = random.uniform(low, high, shape).astype(np.float32)
            continue
        values = random.standard_normal(shape, dtype=np.float32) / np.float32(shape[1] ** 0.5)
        is_token_table = name in {"model.embed_tokens.weight", "lm_head.weight"}
        if bits is None:
            tensors[name] = values
        elif is_token_table:
            tensors[name] = quantize(values, 8, symmetric=True)
        else:
            tensors[name] = quantize(values, bits)
    return MemoryCheckpoint(architecture, tensors)


def quantize(
    values: npt.NDArray[np.float32], bits: int, *, block_size: int = 32, symmetric: bool = False
) -> QuantizedTensor:
    """A matrix rounded to blocks from its least to its largest value, or around zero."""
    rows, columns = values.shape
    blocks = values.reshape(rows, columns // block_size, block_size)
    top = (1 << bits) - 1
    if symmetric:
        scale = np.asarray(np.abs(blocks).max(axis=2) / (top // 2), np.float32)
        minimum = np.asarray(-scale * (top // 2 + 1), np.float32)
    else:
        minimum = blocks.min(axis=2)
        scale = np.asarray((blocks.max(axis=2) - minimum) / top, np.float32)
    codes = np.rint((blocks - minimum[:, :, None]) / scale[:, :, None]).clip(0, top)
    return QuantizedTensor(
        bits, block_size, codes.astype(np.uint8).reshape(rows, columns), scale, minimum
    )
