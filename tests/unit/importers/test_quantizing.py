"""A checkpoint that quantizes as it is read, and what it says of the error."""

from __future__ import annotations

import re

import numpy as np
import pytest

from blink_server.importers.checkpoint import QuantizedTensor
from blink_server.importers.quantize import Bits, quantize
from blink_server.importers.quantizing import QuantizingCheckpoint
from blink_server.testing.memory_checkpoint import (
    MemoryCheckpoint,
    random_checkpoint,
    tiny_architecture,
)

UP = "model.layers.0.mlp.up_proj.weight"


def _read(checkpoint: MemoryCheckpoint, bits: Bits) -> QuantizingCheckpoint:
    quantizing = QuantizingCheckpoint(checkpoint, bits)
    for name in quantizing.tensor_names():
        quantizing.tensor(name)
    return quantizing


@pytest.mark.parametrize("bits", [4, 8])
def test_matrices_get_the_bits_token_tables_eight_and_the_rest_none(bits: Bits) -> None:
    floats = random_checkpoint(tiny_architecture(tied_embeddings=False, attention_bias=True))
    quantizing = QuantizingCheckpoint(floats, bits)
    assert quantizing.tensor_names() == floats.tensor_names()
    for name, original in floats.tensors.items():
        tensor = quantizing.tensor(name)
        if name.endswith((".bias", "norm.weight")):
            assert tensor is original
        else:
            assert isinstance(tensor, QuantizedTensor)
            is_table = name in ("model.embed_tokens.weight", "lm_head.weight")
            assert tensor.bits == (8 if is_table else bits)


def test_what_is_quantized_already_and_what_has_no_whole_blocks_stays() -> None:
    floats = random_checkpoint(tiny_architecture())
    held = quantize(floats.dequantized()[UP], 8)
    down = "model.layers.0.mlp.down_proj.weight"
    floats.tensors |= {UP: held, down: np.ones((64, 40), np.float32)}
    quantizing = QuantizingCheckpoint(floats, 4)
    assert quantizing.tensor(UP) is held
    assert quantizing.tensor(down) is floats.tensors[down]


def test_everything_else_is_the_originals() -> None:
    floats = random_checkpoint(tiny_architecture())
    quantizing = QuantizingCheckpoint(floats, 4)
    for name in ("architecture", "eos_token_ids", "bos_token_id", "tokenizer_json"):
        assert getattr(quantizing, name) == getattr(floats, name)
    assert quantizing.chat_template is floats.chat_template
    assert quantizing.source == floats.source
    quantizing.tensor(UP)
    assert quantizing.source == {**floats.source, "quantized_to_bits": 4}


@pytest.mark.parametrize("bits", [4, 8])
def test_the_summary_tells_the_error_there_is(bits: Bits) -> None:
    floats = random_checkpoint(tiny_architecture())
    quantizing = _read(floats, bits)
    squares = errors = worst = 0.0
    for name, original in floats.dequantized().items():
        tensor = quantizing.tensor(name)
        if isinstance(tensor, QuantizedTensor):
            error = tensor.dequantize() - original
            squares += float(np.square(original).sum())
            errors += float(np.square(error).sum())
            blocks = np.abs(original).reshape(-1, 32).max(axis=1)
            worst = max(worst, float((np.abs(error).reshape(-1, 32).max(axis=1) / blocks).max()))
    (line,) = quantizing.summary()
    found = re.search(r"error ([\d.]+)% of the weights .* at most ([\d.]+)% of a block's", line)
    assert found is not None
    assert float(found[1]) == pytest.approx(100 * np.sqrt(errors / squares), abs=0.006)
    assert float(found[2]) == pytest.approx(100 * worst, abs=0.06)
    assert worst < (0.2 if bits == 4 else 0.5 / 127 + 1e-4)
    assert f"quantized 15 float matrices to int{bits}" in line


def test_a_checkpoint_without_floats_has_nothing_to_say() -> None:
    assert _read(random_checkpoint(tiny_architecture(), bits=4), 8).summary() == []
