"""Positions in GGUF models: rotary scaling and sliding windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink_server.errors import InvalidModel
from blink_server.importers.gguf import open_gguf
from blink_server.testing.tiny_gguf import write_tiny_gguf


def test_the_context_is_no_longer_than_a_sliding_window(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for window, expected in [(100, 100), (512, 512), (4096, 512)]:
        write_tiny_gguf(path, metadata={"llama.attention.sliding_window": window})
        assert open_gguf(path).architecture.context_length == expected


def test_linear_scaling_and_the_files_table_divide_the_rotary_frequencies(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    table = np.array([1, 1, 1, 2, 3.5, 8, 8, 8], np.float32)
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    whole = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    for metadata, tensors, divisors in [
        ({}, {}, 1.0),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, {}, 1.0),
        (linear, {}, 4.0),
        ({"llama.rope.scale_linear": 2.0}, {}, 2.0),
        ({}, {"rope_freqs.weight": table}, table),
        (linear, {"rope_freqs.weight": table}, 4 * table),
    ]:
        write_tiny_gguf(path, metadata=metadata, tensors=tensors)
        checkpoint = open_gguf(path)
        frequencies = checkpoint.architecture.rotary_frequencies()
        assert np.allclose(frequencies, whole / divisors, rtol=1e-12)
        assert "rope_freqs.weight" not in checkpoint.tensor_names()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.ones(7, np.float32), "rope.dimension_count: is 16; must be the size of a head, twice"),
        (np.array([1, 0] * 4, np.float32), "rope_freqs.weight: must hold positive finite"),
        (np.array([1, np.nan] * 4, np.float32), "rope_freqs.weight: must hold positive finite"),
        (np.ones(8, np.float16), "rope_freqs.weight: is 'F16'; must be F32"),
    ],
)
def test_a_table_of_frequencies_that_cannot_be_used_is_refused(
    tmp_path: Path, table: Any, message: str
) -> None:
    write_tiny_gguf(tmp_path / "m.gguf", tensors={"rope_freqs.weight": table})
    with pytest.raises(InvalidModel) as refused:
        open_gguf(tmp_path / "m.gguf")
    assert message in str(refused.value)
