"""Small models of every family, from their files to logits, against Hugging Face transformers.

The importer and the steps of the engine `cuda` with plain kernels on one side, the library's own
reading of the same files on the other; float32 on a CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink_server.importers.hf import open_huggingface
from blink_server.testing.llama_reference import forward
from blink_server.testing.tiny_huggingface import write_tiny_huggingface

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.engines.cuda.weights import fill_weights
from blink_persistent.testing.paged_decoder import PagedDecoder, Part

pytestmark = pytest.mark.slow

PROMPT, CONTINUATION = (3, 99, 14, 15, 92, 65, 35, 0, 100, 7, 9, 201, 44), (20, 46, 64)
BLOCKS = (3, 1)
TOLERANCE = 1e-4

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.5, 2.0, 2.5, 4.0],
    "long_factor": [9.0] * 6,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 3": ("llama", {"rope_theta": 500000.0, "rope_scaling": LLAMA3}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe, all experts": ("qwen3_moe", {"num_experts_per_tok": 6}),
    "phi3, all of a head turns": ("phi3", {"partial_rotary_factor": 1.0}),
    "phi3": ("phi3", {}),
    "phi3, longrope": (
        "phi3",
        {"rope_scaling": LONGROPE, "original_max_position_embeddings": 32},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    family, config = MODELS[name]
    model = write_tiny_huggingface(tmp_path / "m", family, config=config, tied=False)
    library = transformers.AutoModelForCausalLM.from_pretrained(
        model.directory, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        expected = library(torch.tensor([PROMPT + CONTINUATION])).logits[0].numpy()

    checkpoint = open_huggingface(model.directory)
    architecture = checkpoint.architecture
    plain = {tensor: checkpoint.tensor(tensor) for tensor in checkpoint.tensor_names()}
    found = forward(architecture, plain, PROMPT + CONTINUATION).logits  # type: ignore[arg-type]
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=TOLERANCE)

    def fill(tensor: str, part: Any) -> None:
        part.copy_(torch.from_numpy(plain[tensor]))

    weights = fill_weights(architecture, fill, device="cpu", dtype=torch.float32)
    paged = PagedDecoder.build(architecture, weights, ReferenceKernels(), device="cpu")
    steps = [paged.prefill([Part(BLOCKS, 0, PROMPT)])]
    for done, token in enumerate(CONTINUATION, len(PROMPT)):
        steps.append(paged.decode([Part(BLOCKS, done, (token,))]))
    np.testing.assert_allclose(
        torch.cat(steps).numpy(), expected[len(PROMPT) - 1 :], atol=TOLERANCE, rtol=TOLERANCE
    )
