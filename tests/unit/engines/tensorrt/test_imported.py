"""A network of an imported version's weight file, as a build makes it, agrees with the decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from blink_persistent.engines.cuda.weight_file import WEIGHT_FILE
from blink_persistent.engines.tensorrt.weights import map_weights
from blink_persistent.testing.network_decoder import NetworkDecoder
from blink_persistent.testing.step_parts import Part
from blink_server.importers.command import import_command
from blink_server.testing.llama_reference import forward
from blink_server.testing.tiny_huggingface import write_tiny_huggingface

PROMPT, COUNT, TABLE = 30, 8, (7, 2, 5)
ERROR = 2e-2  # root mean square, as a share of the logits' spread: of activations in bfloat16


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "phi3"])
def test_steps_from_an_imported_version(
    trt: Any, builder: Any, family: str, tmp_path: Path
) -> None:
    model = write_tiny_huggingface(tmp_path / "hf", family, dtype="F16", tied=False)
    arguments = ["--hf", str(model.directory), "--name", "tiny", "--engine", "cuda"]
    repository = ["--model-repository", str(tmp_path / "models")]
    imported = CliRunner().invoke(import_command, [*arguments, *repository])
    assert imported.exception is None, imported.output

    architecture, weights = map_weights(tmp_path / "models" / "tiny" / "1" / WEIGHT_FILE)
    paged = NetworkDecoder(trt, builder, architecture, weights)
    size = architecture.vocabulary_size
    text = tuple(np.random.default_rng(4).integers(0, size, PROMPT + COUNT).tolist())
    steps = [paged.prefill([Part(TABLE, 0, text[:PROMPT])])[0]]
    for at in range(PROMPT, len(text)):
        steps.append(paged.decode([Part(TABLE, at, text[at : at + 1])])[0])

    held = {
        name: values.astype(ml_dtypes.bfloat16).astype(np.float32)
        for name, values in model.weights.items()
    }
    expected = forward(model.architecture, held, text).logits[PROMPT - 1 :]
    errors = np.sqrt(np.square(np.stack(steps) - expected).mean(axis=1)) / expected.std()
    # Rounding may change which of two equally good experts is chosen last.
    allowed = 1 if architecture.experts else 0
    assert (errors >= ERROR).sum() <= allowed, errors
