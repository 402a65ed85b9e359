"""What an architecture of each family that engines on a GPU know changes of a small one."""

from __future__ import annotations

from typing import Any

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "untied": {"tied_embeddings": False},
    "qwen2": {"attention_bias": True, "rms_norm_eps": 1e-6},
    "qwen3": {"qk_norm": True, "rope_theta": 1e6},
    "three_to_one": {"heads": 3, "kv_heads": 1},
    "phi": {
        **{"rotary_dim": 12, "rope_divisors": tuple(1.0 + i / 4 for i in range(6))},
        **{"rope_magnitude": 1.2},
    },
    "qwen3_moe": {
        **{"family": "qwen3_moe", "qk_norm": True, "intermediate_size": 48},
        **{"experts": 5, "experts_per_token": 2},
    },
}
