"""Weights as steps read them: where each tensor of the file went, and random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blink_persistent.engines.cuda.weight_file import write_weights
from blink_server.errors import Unavailable
from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture

torch = pytest.importorskip("torch", reason="torch is not installed")

from blink_persistent.engines.cuda.weights import random_weights, read_weights

QWEN = tiny_architecture(tied_embeddings=False, attention_bias=True, qk_norm=True)


def test_a_file_is_read_into_stacked_projections(tmp_path: Path) -> None:
    checkpoint = random_checkpoint(QWEN)
    write_weights(checkpoint, tmp_path / "w")
    told: list[float] = []
    weights = read_weights(tmp_path / "w", QWEN, device="cpu", progress=told.append)
    plain = {name: torch.from_numpy(t).bfloat16() for name, t in checkpoint.dequantized().items()}

    def part(layer: int, name: str) -> Any:
        return plain[f"model.layers.{layer}.{name}"]

    for number, layer in enumerate(weights.layers):
        rows = torch.cat([part(number, f"self_attn.{x}_proj.weight") for x in "qkv"])
        assert torch.equal(layer.qkv, rows)
        biases = torch.cat([part(number, f"self_attn.{x}_proj.bias") for x in "qkv"])
        assert torch.equal(layer.qkv_bias, biases)
        inner = torch.cat([part(number, f"mlp.{x}_proj.weight") for x in ("gate", "up")])
        assert torch.equal(layer.gate_up, inner)
        assert torch.equal(layer.k_norm, part(number, "self_attn.k_norm.weight"))
    assert torch.equal(weights.head, plain["lm_head.weight"])
    assert told[-1] == 1.0


def test_experts_lie_behind_each_other(tmp_path: Path) -> None:
    architecture = tiny_architecture(
        family="qwen3_moe", intermediate_size=48, experts=3, experts_per_token=2
    )
    checkpoint = random_checkpoint(architecture)
    write_weights(checkpoint, tmp_path / "w")
    weights = read_weights(tmp_path / "w", architecture, device="cpu", progress=lambda part: None)
    plain = {name: torch.from_numpy(t).bfloat16() for name, t in checkpoint.dequantized().items()}
    for number, layer in enumerate(weights.layers):
        mlp = f"model.layers.{number}.mlp"
        assert torch.equal(layer.router, plain[f"{mlp}.gate.weight"])
        assert layer.gate_up.shape == (3, 96, 64)
        assert layer.down.shape == (3, 64, 48)
        for expert in range(3):
            one = f"{mlp}.experts.{expert}"
            halves = [plain[f"{one}.{part}_proj.weight"] for part in ("gate", "up")]
            assert torch.equal(layer.gate_up[expert], torch.cat(halves))
            assert torch.equal(layer.down[expert], plain[f"{one}.down_proj.weight"])
    shapes = architecture.tensor_shapes().values()
    assert weights.nbytes() == 2 * sum(torch.Size(shape).numel() for shape in shapes)


def test_a_tied_head_is_the_embedding_and_counts_once() -> None:
    architecture = tiny_architecture()
    weights = random_weights(architecture, device="cpu", dtype=torch.bfloat16)
    assert weights.head is weights.embedding
    assert weights.layers[0].qkv_bias is None
    shapes = architecture.tensor_shapes().values()
    assert weights.nbytes() == 2 * sum(torch.Size(shape).numel() for shape in shapes)


def test_random_weights_depend_on_their_seed_alone() -> None:
    one, same, other = (
        random_weights(QWEN, device="cpu", dtype=torch.float32, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(one.layers[1].gate_up, same.layers[1].gate_up)
    assert not torch.equal(one.layers[1].gate_up, other.layers[1].gate_up)
    deviation = float(one.layers[0].qkv.std())
    assert deviation == pytest.approx(QWEN.hidden_size**-0.5, rel=0.05)


def test_the_engine_needs_a_gpu_by_name(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    pytest.importorskip("triton", reason="triton is not installed")
    from blink_persistent.graph_grid import default_grid
    from blink_persistent.testing.cuda_harness import cuda_version, provision

    version = cuda_version(
        tmp_path, engine={"weights": "random", "model": "smollm2-135m"}, context_length=64
    )
    with pytest.raises(Unavailable, match=r"GPU|CUDA"):
        provision(version, default_grid(1, 16))
