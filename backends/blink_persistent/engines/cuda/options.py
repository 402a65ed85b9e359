"""The engine's options in config.json's "engine", and what the version is by them.

file: the weights that `build` wrote, by default model.safetensors. weights: "file" or "random";
random ones need model, a name of `ARCHITECTURES`, and no file. dtype: of weights, activations and
KV entries, "bfloat16". block_size: KV entries of a block.
block_count: blocks of KV memory, the null block included; by default what memory is left. capture:
"all" graphs before the version is ready, or a coarse part of the grid, and the rest in the
"background" of the requests. decode_kernels: "likely", those that were fastest, and what is likely
the fastest where nothing was measured, or "measured", the former alone. device, scheduler: see
`place.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.cuts.choices import DOT_LEAST
from blink_persistent.engines.cuda.weight_file import WEIGHT_FILE, read_stored_architecture
from blink_persistent.engines.place import PLACE_OPTIONS, place_problems
from blink_server.backend import ModelVersion
from blink_server.errors import InvalidModel, Problem
from blink_server.importers.checkpoint import Architecture

DTYPE = "bfloat16"
DEFAULT_BLOCK_SIZE = 64
BLOCK_SIZES = (16, 32, 64, 128, 256)
_SOURCES = ("file", "random")
_CAPTURES = ("all", "background")
_DECODE_KERNELS = ("likely", "measured")
_NAMES = (
    *("name", *PLACE_OPTIONS),
    *("file", "weights", "model", "dtype", "block_size", "block_count", "capture"),
    "decode_kernels",
)
_LARGEST_HEAD = 256
_MOST_EXPERTS = 1024  # counts that the kernel which sorts by expert holds
_LARGEST_VOCABULARY = 1 << 19  # the device sampler's limit


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaOptions:
    """A version's options, checked."""

    architecture: Architecture
    file: str | None  # None: random weights
    block_size: int
    block_count: int | None
    in_background: bool = False  # most graphs are captured
    likely_kernels: bool = True


def read_options(version: ModelVersion) -> CudaOptions:
    """Raises InvalidModel with everything that is wrong."""
    given: dict[str, Any] = version.config["engine"]
    if problems := list(_problems(version, given)):
        raise InvalidModel(problems)
    return checked_options(version, _architecture(version, given))


def checked_options(version: ModelVersion, architecture: Architecture) -> CudaOptions:
    """Those of a version whose weights are known, or yet to be written. Raises InvalidModel."""
    given: dict[str, Any] = version.config["engine"]
    if problems := [*_problems(version, given), *unservable(version, architecture)]:
        raise InvalidModel(problems)
    return CudaOptions(
        architecture=architecture,
        file=None if _is_random(given) else given.get("file", WEIGHT_FILE),
        block_size=given.get("block_size", DEFAULT_BLOCK_SIZE),
        block_count=given.get("block_count"),
        in_background=given.get("capture") == "background",
        likely_kernels=given.get("decode_kernels", "likely") == "likely",
    )


def _is_random(given: dict[str, Any]) -> bool:
    return bool(given.get("weights") == "random")


def _architecture(version: ModelVersion, given: dict[str, Any]) -> Architecture:
    if _is_random(given):
        return ARCHITECTURES[given["model"]]
    return read_stored_architecture(version.directory / given.get("file", WEIGHT_FILE))


def _problems(version: ModelVersion, given: dict[str, Any]) -> Iterator[Problem]:
    def problem(field: str, expected: str) -> Problem:
        file = version.directory / "config.json"
        return Problem(file, f"engine.{field}", given.get(field), expected)

    yield from place_problems(version)
    for name in given:
        if name not in _NAMES:
            yield problem(name, f"use one of {', '.join(_NAMES)}")
    if given.get("weights", "file") not in _SOURCES:
        yield problem("weights", f"must be one of {', '.join(_SOURCES)}")
    if _is_random(given):
        if given.get("model") not in tuple(ARCHITECTURES):
            yield problem("model", f"must be one of {', '.join(ARCHITECTURES)} for random weights")
        if "file" in given:
            yield problem("file", "must be left out: random weights come from no file")
    elif "model" in given:
        yield problem("model", 'must be left out: only "weights": "random" have a shape by name')
    if not isinstance(given.get("file", WEIGHT_FILE), str):
        yield problem("file", "must be a string")
    if given.get("dtype", DTYPE) != DTYPE:
        yield problem("dtype", f"must be {DTYPE!r}")
    if given.get("block_size", DEFAULT_BLOCK_SIZE) not in BLOCK_SIZES:
        yield problem("block_size", f"must be one of {', '.join(map(str, BLOCK_SIZES))}")
    if given.get("capture", "all") not in _CAPTURES:
        yield problem("capture", f"must be one of {', '.join(_CAPTURES)}")
    if given.get("decode_kernels", "likely") not in _DECODE_KERNELS:
        yield problem("decode_kernels", f"must be one of {', '.join(_DECODE_KERNELS)}")
    count = given.get("block_count", 2)
    if type(count) is not int or count < 2:
        yield problem("block_count", "must be a whole number, 2 or more")


def unservable(version: ModelVersion, architecture: Architecture) -> Iterator[Problem]:
    """What the kernels or the limits do not allow of an architecture that is known."""
    file = version.directory / "config.json"
    context = version.config["limits"]["context_length"]
    if context > architecture.context_length:
        expected = f"must be at most the model's {architecture.context_length}"
        yield Problem(file, "limits.context_length", context, expected)
    if architecture.heads % architecture.kv_heads:
        expected = f"must divide the {architecture.heads} heads"
        yield Problem(file, "architecture.kv_heads", architecture.kv_heads, expected)
    if architecture.head_dim % 2 or not 16 <= architecture.head_dim <= _LARGEST_HEAD:
        expected = f"must be even, from 16 to {_LARGEST_HEAD}"
        yield Problem(file, "architecture.head_dim", architecture.head_dim, expected)
    for field, size in (
        ("hidden_size", architecture.hidden_size),
        ("intermediate_size", architecture.intermediate_size),
    ):
        if architecture.experts and size % DOT_LEAST:
            yield Problem(file, f"architecture.{field}", size, f"must be a multiple of {DOT_LEAST}")
    if architecture.experts > _MOST_EXPERTS:
        expected = f"must be at most {_MOST_EXPERTS}"
        yield Problem(file, "architecture.experts", architecture.experts, expected)
    if architecture.vocabulary_size > _LARGEST_VOCABULARY:
        expected = f"must be at most {_LARGEST_VOCABULARY}"
        size = architecture.vocabulary_size
        yield Problem(file, "architecture.vocabulary_size", size, expected)
