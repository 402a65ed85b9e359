"""GGUF's block formats, decoded bit by bit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest

from blink_server.importers import gguf_tensors
from blink_server.importers.checkpoint import QuantizedTensor
from blink_server.importers.gguf import open_gguf
from blink_server.testing.tiny_gguf import write_tiny_gguf

# Where a block has its float16 numbers, if not at its first two bytes alone.
_SCALES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def test_quantized_blocks_are_the_files_own(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "m.gguf", seed=3)
    raw = {tensor.name: tensor.data for tensor in gguf.GGUFReader(model.path).tensors}

    four = open_gguf(model.path).tensor("model.layers.0.mlp.up_proj.weight")
    assert isinstance(four, QuantizedTensor)
    block = raw["blk.0.ffn_up.weight"][5, 20:40]  # second block of row 5
    assert four.scale[5, 1] == block[0:2].view(np.float16)[0]
    assert four.minimum[5, 1] == block[2:4].view(np.float16)[0]
    assert four.codes[5, 32] == block[4] & 15
    assert four.codes[5, 32 + 16] == block[4] >> 4
    assert (four.bits, four.block_size, four.shape) == (4, 32, (128, 64))

    eight = open_gguf(model.path).tensor("model.embed_tokens.weight")
    assert isinstance(eight, QuantizedTensor)
    block = raw["token_embd.weight"][7, 0:34]
    assert eight.scale[7, 0] == block[0:2].view(np.float16)[0]
    assert np.array_equal(eight.codes[7, :32], block[2:].view(np.int8).astype(int) + 128)
    assert np.array_equal(eight.minimum, -128 * eight.scale)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
def test_any_bytes_mean_what_the_format_says(kind: str) -> None:
    """Every code, scale and sign, also those that no quantizer would choose."""
    quantized = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[quantized]
    random = np.random.default_rng(0)
    data = random.integers(0, 256, (64, 4, size), dtype=np.uint8)
    for place in _SCALES.get(kind, (0,)):
        scales = random.uniform(-2, 2, (64, 4, 1)).astype(np.float16)
        data[:, :, place : place + 2] = scales.view(np.uint8)
    data = data.reshape(64, -1)
    tensor = gguf_tensors.decode(SimpleNamespace(tensor_type=quantized, data=data))
    assert isinstance(tensor, QuantizedTensor)
    assert tensor.shape == (64, 4 * block)
    assert tensor.codes.max() == (1 << tensor.bits) - 1
    assert np.array_equal(tensor.dequantize(), gguf.dequantize(data, quantized))
