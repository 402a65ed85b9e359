"""What an import writes for the engine `cuda`: weights, options, limits and the graph grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from blink_persistent.engines import TOKEN_GRANULARITY
from blink_persistent.engines.cuda.memory import kv_entry_bytes
from blink_persistent.engines.cuda.options import DTYPE, checked_options
from blink_persistent.engines.cuda.weight_file import WEIGHT_FILE, write_weights
from blink_persistent.engines.random_checkpoint import RandomCheckpoint
from blink_persistent.graph_grid import GraphGrid, fine_grid
from blink_server.backend import BuildResult, ModelVersion
from blink_server.importers.checkpoint import Architecture, Checkpoint

_CONTEXT, _ROWS, _PREFILL_TOKENS, _SEQUENCES, _SLOTS = 8192, 64, 2048, 8, 4096
_CHUNK, _CHUNK_WITH_EXPERTS = 608, 1024  # prompt tokens beside rows: measured on an H200
_WARM_UP = {"prompt": "Hello", "max_tokens": 4}
_WARM_UP_CONTEXT = 64  # that certainly holds it
_KIB = 1 << 10


def build_version(
    checkpoint: Checkpoint,
    directory: Path,
    *,
    limits: Mapping[str, Any],
    options: Mapping[str, Any],
    progress: Callable[[str, float], None],
) -> BuildResult:
    """Write a checkpoint's weights to `directory`; those of a `RandomCheckpoint` need no file.

    `options` become options of config.json. Neither PyTorch nor a GPU is asked for. Raises
    InvalidModel, for limits, options and shapes before anything is written.
    """
    architecture = checkpoint.architecture
    chosen = _choose_limits(architecture, limits)
    shape = checkpoint.model if isinstance(checkpoint, RandomCheckpoint) else None
    weights = {"weights": "random", "model": shape} if shape else {"file": WEIGHT_FILE}
    engine = {"name": "cuda", **weights, "dtype": DTYPE, **options}
    config: dict[str, Any] = {"engine": engine, "limits": chosen}
    checked_options(ModelVersion("", 1, directory, config), architecture)
    if shape:
        held = f"random weights in {DTYPE}, made when the version is loaded"
    else:
        rounding = write_weights(
            checkpoint, directory / WEIGHT_FILE, lambda part: progress("weights", part)
        )
        held = f"weights are held in {DTYPE}: {rounding}"
    if chosen["context_length"] >= _WARM_UP_CONTEXT:
        config["warmup"] = [_WARM_UP]
    grid = _grid(architecture, chosen)
    memory = (
        "what limits.memory_fraction leaves of the GPU's memory is for KV, "
        f"{kv_entry_bytes(architecture) / _KIB:g} KiB a token"
    )
    return BuildResult([] if shape else [WEIGHT_FILE], config, grid.to_json(), [held, memory])


def default_chunk(*, experts: int) -> int:
    """Prompt tokens of mixed steps where `limits.prefill_chunk` says nothing."""
    return _CHUNK_WITH_EXPERTS if experts else _CHUNK


def _choose_limits(architecture: Architecture, limits: Mapping[str, Any]) -> dict[str, Any]:
    """The limits asked for, and this engine's choice of what was not."""
    context = limits.get("context_length", min(architecture.context_length, _CONTEXT))
    chosen = {
        "context_length": context,
        "max_rows": _ROWS,
        "max_prefill_tokens": min(_PREFILL_TOKENS, _SEQUENCES * context),
        "slots": _SLOTS,
    }
    return chosen | dict(limits)


def _grid(architecture: Architecture, limits: Mapping[str, Any]) -> GraphGrid:
    chunk = limits.get("prefill_chunk", default_chunk(experts=architecture.experts))
    return fine_grid(
        limits["max_rows"],
        limits["max_prefill_tokens"],
        max_sequences=min(_SEQUENCES, limits["max_rows"]),
        granularity=TOKEN_GRANULARITY,
        max_mixed_tokens=min(chunk, limits["max_prefill_tokens"]),
    )
