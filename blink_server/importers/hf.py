"""Opens a Hugging Face model directory as a checkpoint in canonical form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink_server.errors import InvalidModel, Problem
from blink_server.importers.checkpoint import Architecture, Tensor
from blink_server.importers.file_hash import sha256_of_all
from blink_server.importers.fused_tensors import StoredRows, canonical_tensors, stored_shapes
from blink_server.importers.hf_config import read_architecture
from blink_server.importers.hf_text import read_text
from blink_server.importers.safetensors_files import (
    FLOAT_TYPES,
    INDEX_FILE,
    SINGLE_FILE,
    StoredTensor,
    open_tensors,
)
from blink_server.importers.tensor_table import TensorEntry, table_problems

Progress = Callable[[str, float], None]


@dataclass(slots=True)
class HuggingFaceCheckpoint:
    """A `Checkpoint` over mapped safetensors files: a tensor is read when asked for."""

    architecture: Architecture
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    tokenizer_json: str
    chat_template: str | None
    source: Mapping[str, Any]
    _tensors: Mapping[str, StoredTensor | StoredRows]

    def tensor_names(self) -> list[str]:
        return list(self._tensors)

    def tensor(self, name: str) -> Tensor:
        """The tensor of a canonical name as float32, read anew at each call.

        Raises KeyError, and `InvalidModel` where the file holds values that are not numbers.
        """
        return self._tensors[name].read()


def open_huggingface(
    directory: Path, *, origin: Mapping[str, Any] | None = None, progress: Progress | None = None
) -> HuggingFaceCheckpoint:
    """Open a directory, check it whole, and read its tokenizer; weights stay on disk.

    `origin` is added to the provenance that config.json keeps ("model", "revision"). `progress`
    hears of the stages "tokenizer" and "hash". Raises `InvalidModel` naming file, field and
    value: an unsupported architecture or feature, tensors that are missing, unknown, misshapen
    or of an unreadable type, damaged files.
    """
    report = progress or (lambda stage, fraction: None)
    if not directory.is_dir():
        raise InvalidModel([Problem(directory, "", None, "is not a directory")])
    architecture = read_architecture(directory)
    report("tokenizer", 0.0)
    text = read_text(directory, architecture.vocabulary_size)
    report("tokenizer", 1.0)
    opened = open_tensors(directory)
    shapes = stored_shapes(architecture.tensor_shapes(), opened)
    tensors = {
        name: tensor
        for name, tensor in opened.items()
        if name in shapes or not _repeats_another(name)
    }
    weights_file = INDEX_FILE if (directory / INDEX_FILE).exists() else SINGLE_FILE
    entries = {name: _entry(tensor) for name, tensor in tensors.items()}
    types = ", ".join(FLOAT_TYPES)
    if problems := [*table_problems(directory / weights_file, shapes, entries, types)]:
        raise InvalidModel(problems)
    files = sorted({tensor.file for tensor in tensors.values()})
    return HuggingFaceCheckpoint(
        architecture=architecture,
        eos_token_ids=text.eos_token_ids,
        bos_token_id=text.bos_token_id,
        tokenizer_json=text.tokenizer_json,
        chat_template=text.chat_template,
        source={
            "format": "safetensors",
            "file": f"{directory.resolve().name}/{weights_file}",
            **(origin or {}),
            "sha256": sha256_of_all(files, lambda part: report("hash", part)),
        },
        _tensors=canonical_tensors(architecture, tensors),
    )


def _repeats_another(name: str) -> bool:
    """Tensors that some files hold beside the one, or the setting, that they repeat."""
    return name == "lm_head.weight" or name.endswith("rotary_emb.inv_freq")


def _entry(tensor: StoredTensor) -> TensorEntry:
    return TensorEntry(tensor.shape, tensor.dtype, tensor.dtype in FLOAT_TYPES)
