"""Steps from an imported directory, read as the engine reads it, agree with the plain decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner

from blink_persistent.engines.cuda.options import read_options
from blink_server.backend import ModelVersion
from blink_server.config import load_model_config
from blink_server.importers.command import import_command
from blink_server.testing.llama_reference import forward
from blink_server.testing.tiny_gguf import write_tiny_gguf
from blink_server.testing.tiny_huggingface import write_tiny_huggingface

torch = pytest.importorskip("torch", reason="torch is not installed")

from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.engines.cuda.weights import read_weights
from blink_persistent.testing.paged_decoder import PagedDecoder, Part

PROMPT, COUNT, TABLE = 30, 20, (7, 2, 5, 9)
ERROR = 2e-2  # root mean square, as a share of the logits' spread: of activations in bfloat16

Source = tuple[str, Path, Mapping[str, npt.NDArray[np.float32]]]


def hugging_face(family: str) -> Callable[[Path], Source]:
    def write(directory: Path) -> Source:
        model = write_tiny_huggingface(directory / "hf", family, dtype="F16", tied=False)
        return "--hf", model.directory, model.weights

    return write


def gguf(family: str) -> Callable[[Path], Source]:
    def write(directory: Path) -> Source:
        model = write_tiny_gguf(directory / "m.gguf", architecture=family)
        return "--gguf", model.path, model.weights

    return write


@pytest.mark.parametrize(
    "write",
    [
        *(pytest.param(hugging_face(name), id=f"hf-{name}") for name in ("llama", "qwen2")),
        *(pytest.param(gguf(name), id=f"gguf-{name}") for name in ("llama", "qwen3")),
    ],
)
def test_steps_from_an_imported_version(write: Callable[[Path], Source], tmp_path: Path) -> None:
    option, path, weights = write(tmp_path)
    repository = tmp_path / "models"
    arguments = [option, str(path), "--name", "tiny", "--model-repository", str(repository)]
    imported = CliRunner().invoke(import_command, [*arguments, "--engine", "cuda"])
    assert imported.exception is None, imported.output

    directory = repository / "tiny" / "1"
    version = ModelVersion("tiny", 1, directory, load_model_config(directory))
    options = read_options(version)
    assert options.file is not None
    read = read_weights(
        directory / options.file, options.architecture, device="cpu", progress=lambda part: None
    )
    paged = PagedDecoder.build(options.architecture, read, ReferenceKernels(), device="cpu")
    size = options.architecture.vocabulary_size
    text = tuple(np.random.default_rng(4).integers(0, size, PROMPT + COUNT).tolist())
    steps = [paged.prefill([Part(TABLE, 0, text[:PROMPT])])[0]]
    for at in range(PROMPT, len(text)):
        steps.append(paged.decode([Part(TABLE, at, text[at : at + 1])])[0])
    found = torch.stack(steps).double().numpy()

    held = {name: rounded(values) for name, values in weights.items()}
    expected = forward(options.architecture, held, text).logits[PROMPT - 1 :]
    assert relative_error(found, expected) < ERROR
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.8


def rounded(values: Any) -> npt.NDArray[np.float32]:
    """What bfloat16 holds of them."""
    return np.asarray(values).astype(ml_dtypes.bfloat16).astype(np.float32)


def relative_error(found: Any, expected: Any) -> float:
    return float(np.sqrt(np.square(found - expected).mean()) / expected.std())
