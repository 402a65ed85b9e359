"""Opens a GGUF file as a checkpoint in canonical form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from blink_server.errors import InvalidModel, Problem
from blink_server.importers import gguf_llama, gguf_tensors
from blink_server.importers.checkpoint import Architecture, Tensor
from blink_server.importers.file_hash import sha256_of_all
from blink_server.importers.gguf_llama import SourceTensor
from blink_server.importers.gguf_metadata import Metadata, read_header
from blink_server.importers.gguf_tokenizer import build_tokenizer
from blink_server.importers.template_check import template_fault
from blink_server.importers.tensor_table import TensorEntry, table_problems

Progress = Callable[[str, float], None]
"""Told a stage's name and how much of it is done, 0 to 1."""

_FREQUENCIES = "rope_freqs.weight"


@dataclass(slots=True)
class GgufCheckpoint:
    """A `Checkpoint` over a mapped file: a tensor is read and decoded when asked for."""

    path: Path
    architecture: Architecture
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    tokenizer_json: str
    chat_template: str | None
    source: Mapping[str, Any]
    _sources: Mapping[str, SourceTensor]
    _tensors: Mapping[str, gguf.ReaderTensor]

    def tensor_names(self) -> list[str]:
        return list(self._sources)

    def tensor(self, name: str) -> Tensor:
        """The tensor of a canonical name, decoded anew at each call.

        Raises KeyError, and `InvalidModel` where the file holds values that are not numbers.
        """
        source = self._sources[name]
        tensor = gguf_tensors.decode(self._tensors[source.name])
        if not gguf_tensors.all_finite(tensor):
            raise InvalidModel(
                [Problem(self.path, source.name, None, "holds infinite or undefined values")]
            )
        if source.rotary_heads:
            return gguf_llama.undo_interleaving(tensor, source.rotary_heads)
        return tensor


def open_gguf(path: Path, *, progress: Progress | None = None) -> GgufCheckpoint:
    """Open the file, check it whole, and build its tokenizer; weights stay on disk.

    `progress` hears of the stages "header", "tokenizer" and "hash". Raises `InvalidModel` with
    every problem's key or tensor: an unsupported architecture, tokenizer or tensor type, tensors
    that are missing, unknown or of a wrong shape, a damaged file.
    """
    report = progress or (lambda stage, fraction: None)
    report("header", 0.0)
    metadata, tensors = read_header(path)
    report("header", 1.0)
    architecture = gguf_llama.read_architecture(
        metadata,
        tied_embeddings="output.weight" not in tensors,
        frequency_divisors=_frequency_divisors(path, tensors.pop(_FREQUENCIES, None)),
    )
    sources = gguf_llama.source_tensors(architecture, metadata.text("general.architecture"))
    shapes = {source.name: source.shape for source in sources.values()}
    entries = {name: _entry(tensor) for name, tensor in tensors.items()}
    types = gguf_tensors.supported_types()
    if problems := [*table_problems(path, shapes, entries, types)]:
        raise InvalidModel(problems)
    report("tokenizer", 0.0)
    tokenizer_json, bos_token_id = build_tokenizer(metadata)
    report("tokenizer", 1.0)
    return GgufCheckpoint(
        path=path,
        architecture=architecture,
        eos_token_ids=_end_ids(metadata, architecture.vocabulary_size),
        bos_token_id=bos_token_id,
        tokenizer_json=tokenizer_json,
        chat_template=_chat_template(metadata),
        source={
            "format": "gguf",
            "file": path.name,
            "sha256": sha256_of_all([path], lambda part: report("hash", part))[path.name],
        },
        _sources=sources,
        _tensors=tensors,
    )


def _chat_template(metadata: Metadata) -> str | None:
    key = "tokenizer.chat_template"
    if key not in metadata:
        return None
    template = metadata.text(key)
    if fault := template_fault(template):
        raise metadata.invalid(key, fault, show_value=False)
    return template


def _end_ids(metadata: Metadata, vocabulary_size: int) -> tuple[int, ...]:
    """Ids that end an answer: the file's end of sequence, and end of turn where it has them."""
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    if keys[0] not in metadata:
        raise metadata.invalid(keys[0], "is missing from the file's metadata")
    ids = (metadata.token_id(key, vocabulary_size) for key in keys)
    return tuple(dict.fromkeys(token for token in ids if token is not None))


def _frequency_divisors(path: Path, tensor: gguf.ReaderTensor | None) -> tuple[float, ...]:
    """What the file's own table divides the rotary frequencies by: Llama 3's scaling, computed."""
    if tensor is None:
        return ()
    if tensor.tensor_type.name != "F32":
        raise InvalidModel([Problem(path, _FREQUENCIES, tensor.tensor_type.name, "must be F32")])
    if not (np.isfinite(tensor.data).all() and (tensor.data > 0).all()):
        raise InvalidModel([Problem(path, _FREQUENCIES, None, "must hold positive finite numbers")])
    return tuple(tensor.data.astype(np.float64).ravel().tolist())


def _entry(tensor: gguf.ReaderTensor) -> TensorEntry:
    shape = tuple(int(size) for size in reversed(tensor.shape))
    return TensorEntry(shape, tensor.tensor_type.name, gguf_tensors.is_supported(tensor))
