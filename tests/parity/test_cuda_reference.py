"""SmolLM2-135M-Instruct in bfloat16 on the engine `cuda` against float32 Hugging Face transformers.

The steps and weights of the engine, with plain kernels on a CPU, with the fused ones where there
is a GPU. Teacher forced: all cases are decoded together, each reading the reference's tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blink_server.importers.gguf import open_gguf
from blink_server.importers.pull import pull

torch = pytest.importorskip("torch", reason="torch is not installed")

from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.engines.cuda.weight_file import read_stored_architecture, write_weights
from blink_persistent.engines.cuda.weights import read_weights
from blink_persistent.testing.paged_decoder import INACTIVE, PagedDecoder, Part

pytestmark = pytest.mark.slow

REFERENCE = Path(__file__).parent / "reference" / "smollm2_greedy.json"
CASES: list[dict[str, Any]] = json.loads(REFERENCE.read_text(encoding="utf-8"))["cases"]
BLOCK_SIZE, BLOCKS_EACH = 64, 8


@pytest.fixture(scope="module")
def paged(tmp_path_factory: pytest.TempPathFactory) -> PagedDecoder:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    write_weights(open_gguf(pull("smollm2-135m-instruct")), path)
    architecture = read_stored_architecture(path)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kernels: Any = ReferenceKernels()
    if device == "cuda":
        from blink_persistent.engines.cuda.kernels.fused import FusedKernels

        chained = torch.cuda.get_device_properties(0).major >= 9
        kernels = FusedKernels(
            architecture,
            max_rows=len(CASES),
            capacity=architecture.context_length,
            processors=torch.cuda.get_device_properties(0).multi_processor_count - 1,
            chained=chained,
            device=device,
        )
    return PagedDecoder.build(
        architecture,
        read_weights(path, architecture, device=device, progress=lambda part: None),
        kernels,
        device=device,
        rows=len(CASES),
        tokens=1024,
        block_size=BLOCK_SIZE,
        block_count=1 + BLOCKS_EACH * len(CASES),
    )


def follow(paged: PagedDecoder) -> list[npt.NDArray[np.float64]]:
    """Log-probabilities before each of the reference's tokens, [tokens, vocabulary] a case."""
    tables = [
        tuple(range(1 + BLOCKS_EACH * i, 1 + BLOCKS_EACH * (i + 1))) for i in range(len(CASES))
    ]
    steps = []
    for table, case in zip(tables, CASES, strict=True):
        logits = paged.prefill([Part(table, 0, tuple(case["prompt_ids"]))])
        steps.append([logits[0].cpu()])
    for step in range(max(len(case["tokens"]) for case in CASES) - 1):
        rows = [
            Part(table, len(case["prompt_ids"]) + step, (case["tokens"][step],))
            if step + 1 < len(case["tokens"])
            else INACTIVE
            for table, case in zip(tables, CASES, strict=True)
        ]
        for found, row, logits in zip(steps, rows, paged.decode(rows), strict=True):
            if row is not INACTIVE:
                found.append(logits.cpu())
    return [torch.stack(found).double().log_softmax(dim=-1).numpy() for found in steps]


def test_bfloat16_agrees_with_the_reference_but_for_near_ties(paged: PagedDecoder) -> None:
    flipped, differences = [], []
    for case, logprobs in zip(CASES, follow(paged), strict=True):
        chosen = logprobs.argmax(axis=1)
        for step, token in enumerate(case["tokens"]):
            if chosen[step] != token:
                flipped.append(case["margin"][step])
            differences.append(abs(logprobs[step, token] - case["logprob"][step]))
    agreement = 1 - len(flipped) / len(differences)
    print(f"agreement {agreement:.4f}, flips {sorted(flipped)}, mean {np.mean(differences):.4f}")
    assert len(differences) > 400
    assert agreement >= 0.98
    assert max(flipped, default=0) <= 0.25
    assert np.mean(differences) < 0.03
