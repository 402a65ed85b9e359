"""Logits of the engine `cuda` in bfloat16 beside those of `onnx_cpu` and of float32 PyTorch.

One random model of SmolLM2's shape, two layers of it, with weights that bfloat16 holds exactly, so
that all three compute the same function. Teacher forced. `cuda` takes its fused kernels where
there is a GPU, plain ones elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blink_server.testing.memory_checkpoint import (
    MemoryCheckpoint,
    random_checkpoint,
    tiny_architecture,
)

torch = pytest.importorskip("torch", reason="torch is not installed")

from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.engines.cuda.weights import fill_weights
from blink_persistent.engines.onnx_cpu.graph import write_graph
from blink_persistent.testing.driven_decoder import DrivenDecoder
from blink_persistent.testing.paged_decoder import PagedDecoder, Part

SMOLLM2 = tiny_architecture(
    hidden_size=576, intermediate_size=1536, heads=9, kv_heads=3, head_dim=64,
    vocabulary_size=1000, context_length=256,
)  # fmt: skip
PROMPT, COUNT, TABLE = 70, 30, tuple(range(1, 9))
FLOAT32, BFLOAT16 = 1e-5, 1.5e-2  # root mean square of the errors, as a share of the spread

Logits = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def checkpoint() -> MemoryCheckpoint:
    found = random_checkpoint(SMOLLM2, seed=21)
    for name, tensor in found.tensors.items():
        found.tensors[name] = torch.from_numpy(tensor).bfloat16().float().numpy()
    return found


@pytest.fixture(scope="module")
def text() -> tuple[int, ...]:
    return tuple(np.random.default_rng(2).integers(0, 1000, PROMPT + COUNT).tolist())


def follow(paged: PagedDecoder, text: tuple[int, ...]) -> Logits:
    """Before each of the last COUNT tokens, [COUNT, vocabulary]."""
    steps = [paged.prefill([Part(TABLE, 0, text[:PROMPT])])[0]]
    for at in range(PROMPT, len(text) - 1):
        steps.append(paged.decode([Part(TABLE, at, text[at : at + 1])])[0])
    return torch.stack(steps).double().cpu().numpy()  # type: ignore[no-any-return]


def build(checkpoint: MemoryCheckpoint, dtype: Any, kernels: Any, device: str) -> PagedDecoder:
    plain = checkpoint.dequantized()

    def fill(name: str, part: Any) -> None:
        part.copy_(torch.from_numpy(plain[name]))

    weights = fill_weights(SMOLLM2, fill, device=device, dtype=dtype)
    room = {"tokens": 128, "block_size": 32, "block_count": 16}
    return PagedDecoder.build(SMOLLM2, weights, kernels, device=device, **room)


@pytest.fixture(scope="module")
def float32(checkpoint: MemoryCheckpoint, text: tuple[int, ...]) -> Logits:
    return follow(build(checkpoint, torch.float32, ReferenceKernels(), "cpu"), text)


@pytest.fixture(scope="module")
def onnx_cpu(
    checkpoint: MemoryCheckpoint, text: tuple[int, ...], tmp_path_factory: pytest.TempPathFactory
) -> Logits:
    path: Path = tmp_path_factory.mktemp("model") / "fp32.onnx"
    write_graph(checkpoint, path, context_length=SMOLLM2.context_length, compute="fp32")
    driven = DrivenDecoder(path, max_rows=1, threads=1)
    try:
        steps = [driven.prefill(0, text[:PROMPT])]
        steps += [driven.decode({0: token})[0] for token in text[PROMPT:-1]]
        return np.array(steps, np.float64)
    finally:
        driven.decoder.close()


@pytest.fixture(scope="module")
def cuda(checkpoint: MemoryCheckpoint, text: tuple[int, ...]) -> Logits:
    if not torch.cuda.is_available():
        return follow(build(checkpoint, torch.bfloat16, ReferenceKernels(), "cpu"), text)
    from blink_persistent.engines.cuda.kernels.fused import FusedKernels

    properties = torch.cuda.get_device_properties(0)
    fused = FusedKernels(
        SMOLLM2, max_rows=8, capacity=256, processors=properties.multi_processor_count - 1,
        chained=properties.major >= 9, device="cuda",
    )  # fmt: skip
    return follow(build(checkpoint, torch.bfloat16, fused, "cuda"), text)


def error(found: Logits, wanted: Logits) -> float:
    return float(np.sqrt(np.mean((found - wanted) ** 2)) / wanted.std())


def test_cuda_is_within_bounds_of_float32(float32: Logits, cuda: Logits) -> None:
    found = error(cuda, float32)
    print(f"root mean square error {found:.5f} of the spread")
    assert found < BFLOAT16


def test_cuda_is_within_bounds_of_onnx_cpu(float32: Logits, onnx_cpu: Logits, cuda: Logits) -> None:
    assert error(onnx_cpu, float32) < FLOAT32
    assert error(cuda, onnx_cpu) < BFLOAT16


def test_the_best_token_is_the_same_but_for_near_ties(float32: Logits, cuda: Logits) -> None:
    chosen = cuda.argmax(axis=1)
    margin = float32.max(axis=1) - float32[np.arange(COUNT), chosen]
    assert (margin == 0).mean() >= 0.9
    assert margin.max() < 0.1 * float32.std()
