"""All layers of a decode step in one kernel: for which models, and how it is cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.cuts.attention_call import AttentionCall
from blink_persistent.engines.cuda.kernels.cuts.hopper import HOPPER_LAYERS, measured_choices
from blink_persistent.engines.cuda.kernels.cuts.layers_cut import (
    THREADS,
    LayerFeatures,
    LayersCall,
    layers_code,
    layers_fit,
)
from blink_persistent.gpu import compile as device_code
from blink_persistent.gpu.structs import layout_assertions

HOPPER, PROCESSORS = (9, 0), 131
LLAMA = ARCHITECTURES["llama-3-8b"]


@pytest.mark.parametrize("inner", range(2048, 18432 + 1, 2048))
def test_what_is_taken_fits_beside_a_scheduler(inner: int) -> None:
    shape = replace(LLAMA, intermediate_size=inner)
    found = measured_choices(shape, HOPPER, PROCESSORS).layers
    assert set(found) == (set(HOPPER_LAYERS) if inner <= 14336 else set())
    for rows, cut in found.items():
        assert cut.fits(rows, LayerFeatures.of(shape))


def test_sizes_of_llamas_cuts() -> None:
    features = LayerFeatures.of(LLAMA)
    assert features == LayerFeatures(qkv=48, output=32, gate_up=112, down=32)
    found = {rows: cut.shared_bytes(rows, features) for rows, cut in HOPPER_LAYERS.items()}
    others = 256 + 256 + 1024 + 8320
    assert found == {
        8: 7 * 30720 + 4 * 8 * 48 + others,
        16: 7 * 30720 + 4 * 16 * 48 + others,
    }


def test_a_cut_that_is_too_large_or_waits_for_good_does_not_fit() -> None:
    features, cut = LayerFeatures.of(LLAMA), HOPPER_LAYERS[8]
    assert not replace(cut, stages=8).fits(8, features)
    assert not cut.fits(12, features)
    assert not cut.fits(24, features)
    assert not replace(cut, early=0).fits(8, features)
    assert not replace(cut, flight=8).fits(8, features)
    assert not replace(cut, qkv=2, output=2, gate_up=0, down=2).fits(8, features)


OTHERS: dict[str, dict[str, Any]] = {
    "a bias": {"attention_bias": True},
    "experts": {"experts": 8, "experts_per_token": 2},
    "another size": {"hidden_size": 5120},
    "heads of 64": {"heads": 64, "kv_heads": 16, "head_dim": 64},
    "large groups": {"kv_heads": 2},
    "uneven queries": {"kv_heads": 4},
    "many heads": {"heads": 64},
    "an uneven MLP": {"intermediate_size": 14336 + 128},
    "a wide MLP": {"intermediate_size": 16384 + 2048},
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_models_do_not_fit(other: str) -> None:
    assert layers_fit(LLAMA, HOPPER, PROCESSORS)
    assert not layers_fit(replace(LLAMA, **OTHERS[other]), HOPPER, PROCESSORS)


@pytest.mark.parametrize(
    ("model", "fits"),
    [
        *((name, True) for name in ("llama-3-8b", "llama-3.1-8b", "mistral-7b-v0.3", "qwen3-8b")),
        *((name, False) for name in ("qwen2.5-7b", "phi-4", "qwen3-30b-a3b", "smollm2-135m")),
    ],
)
def test_models_whose_layers_are_made_at_once(model: str, fits: bool) -> None:
    shape = ARCHITECTURES[model]
    assert measured_choices(shape, HOPPER, PROCESSORS).layers == (HOPPER_LAYERS if fits else {})
    assert not measured_choices(shape, HOPPER, 113).layers
    assert not measured_choices(shape, (10, 0), PROCESSORS).layers


def test_the_kernels_compile_and_need_what_they_are_launched_with(device_compiler: None) -> None:
    features = LayerFeatures.of(LLAMA)
    asserted = []
    for rows, cut in HOPPER_LAYERS.items():
        _, sizes = cut.definition(rows, features).rstrip(")").split(", ", 1)
        kernel, shared = f"blink::LayersCut<{sizes}>", cut.shared_bytes(rows, features)
        asserted += [
            f'static_assert({kernel}::kSharedBytes == {shared}, "shared");',
            f'static_assert({kernel}::kThreads == {THREADS}, "threads");',
        ]
    code = device_code.compile_program(
        "layers_gpu.cu",
        arch="sm_90a",
        prologue=layers_code(HOPPER_LAYERS.items(), features),
        epilogue=layout_assertions((AttentionCall, LayersCall)) + "\n".join(asserted) + "\n",
    )
    for rows, cut in HOPPER_LAYERS.items():
        assert cut.kernel_name(rows).encode() in code


def test_a_watchdog_is_asked_for_before_the_kernels() -> None:
    cuts, features = {8: HOPPER_LAYERS[8]}.items(), LayerFeatures.of(LLAMA)
    plain = layers_code(cuts, features)
    assert plain.splitlines() == [
        "#define BLINK_LAYERS \\",
        "BLINK_LAYERS_KERNEL(blink_layers_8_7_4_6_1_6, 8, 7, 4, 6, 1, 6, 48, 32, 112) \\",
        "",
    ]
    assert layers_code(cuts, features, 5000) == f"#define BLINK_WATCHDOG 5000ll\n{plain}"
