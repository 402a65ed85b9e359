"""Shapes of published models by name, for serving random weights where speed is the question.

They are those of the models' own config.json on Hugging Face's hub: HuggingFaceTB/SmolLM2-135M,
meta-llama/Meta-Llama-3-8B and Llama-3.1-8B, mistralai/Mistral-7B-v0.3, Qwen/Qwen2.5-7B,
Qwen/Qwen3-*, microsoft/phi-4.
"""

from __future__ import annotations

from typing import Any

from blink_server.importers.checkpoint import Architecture
from blink_server.importers.rope_scaling import llama3_divisors


def _llama(**sizes: Any) -> Architecture:
    given: dict[str, Any] = {"family": "llama", "rms_norm_eps": 1e-5, "tied_embeddings": False}
    return Architecture(**(given | sizes))


def _qwen(**sizes: Any) -> Architecture:
    return _llama(**({"rope_theta": 1e6, "rms_norm_eps": 1e-6} | sizes))


_LLAMA_3_8B: dict[str, Any] = {
    "layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "vocabulary_size": 128256,
    "rope_theta": 500000.0,
}

ARCHITECTURES = {
    "smollm2-135m": _llama(
        layers=30,
        hidden_size=576,
        intermediate_size=1536,
        heads=9,
        kv_heads=3,
        head_dim=64,
        vocabulary_size=49152,
        context_length=8192,
        rope_theta=100000.0,
        tied_embeddings=True,
    ),
    "llama-3-8b": _llama(**_LLAMA_3_8B, context_length=8192),
    "llama-3.1-8b": _llama(
        **_LLAMA_3_8B,
        context_length=131072,
        rope_divisors=llama3_divisors(
            500000.0,
            128,
            factor=8.0,
            low_frequency_factor=1.0,
            high_frequency_factor=4.0,
            original_context=8192,
        ),
    ),
    "mistral-7b-v0.3": _llama(
        layers=32,
        hidden_size=4096,
        intermediate_size=14336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocabulary_size=32768,
        context_length=32768,
        rope_theta=1e6,
    ),
    "qwen2.5-7b": _qwen(
        layers=28,
        hidden_size=3584,
        intermediate_size=18944,
        heads=28,
        kv_heads=4,
        head_dim=128,
        vocabulary_size=152064,
        context_length=32768,
        attention_bias=True,
    ),
    "qwen3-0.6b": _qwen(
        layers=28,
        hidden_size=1024,
        intermediate_size=3072,
        heads=16,
        kv_heads=8,
        head_dim=128,
        vocabulary_size=151936,
        context_length=40960,
        tied_embeddings=True,
        qk_norm=True,
    ),
    "qwen3-32b": _qwen(
        layers=64,
        hidden_size=5120,
        intermediate_size=25600,
        heads=64,
        kv_heads=8,
        head_dim=128,
        vocabulary_size=151936,
        context_length=40960,
        qk_norm=True,
    ),
    "qwen3-30b-a3b": _qwen(
        family="qwen3_moe",
        layers=48,
        hidden_size=2048,
        intermediate_size=768,
        heads=32,
        kv_heads=4,
        head_dim=128,
        vocabulary_size=151936,
        context_length=40960,
        qk_norm=True,
        experts=128,
        experts_per_token=8,
    ),
    "qwen3-8b": _qwen(
        layers=36,
        hidden_size=4096,
        intermediate_size=12288,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocabulary_size=151936,
        context_length=40960,
        qk_norm=True,
    ),
    "phi-4": _llama(
        layers=40,
        hidden_size=5120,
        intermediate_size=17920,
        heads=40,
        kv_heads=10,
        head_dim=128,
        vocabulary_size=100352,
        context_length=16384,
        rope_theta=250000.0,
    ),
}
