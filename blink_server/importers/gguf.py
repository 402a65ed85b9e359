"""Opens a GGUF file as a checkpoint in canonical form."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from blink_server.errors import InvalidModel, Problem
from blink_server.importers import gguf_llama, gguf_tensors
from blink_server.importers.checkpoint import Architecture, Tensor
from blink_server.importers.gguf_llama import SourceTensor
from blink_server.importers.gguf_metadata import Metadata, read_header
from blink_server.importers.gguf_tokenizer import build_tokenizer_json

Progress = Callable[[str, float], None]
"""Told a stage's name and how much of it is done, 0 to 1."""

_HASH_CHUNK = 4 << 20


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
    if metadata.text("general.architecture") != "llama":
        raise metadata.invalid("general.architecture", "supported is 'llama'")
    architecture = gguf_llama.read_architecture(
        metadata, tied_embeddings="output.weight" not in tensors
    )
    sources = gguf_llama.source_tensors(architecture)
    problems = [*_tensor_problems(path, sources.values(), tensors)]
    if problems:
        raise InvalidModel(problems)
    report("tokenizer", 0.0)
    tokenizer_json = build_tokenizer_json(metadata)
    report("tokenizer", 1.0)
    template = "tokenizer.chat_template"
    return GgufCheckpoint(
        path=path,
        architecture=architecture,
        eos_token_ids=_end_ids(metadata, architecture.vocabulary_size),
        bos_token_id=metadata.token_id("tokenizer.ggml.bos_token_id", architecture.vocabulary_size),
        tokenizer_json=tokenizer_json,
        chat_template=metadata.text(template) if template in metadata else None,
        source={"format": "gguf", "file": path.name, "sha256": _sha256(path, report)},
        _sources=sources,
        _tensors=tensors,
    )


def _end_ids(metadata: Metadata, vocabulary_size: int) -> tuple[int, ...]:
    """Ids that end an answer: the file's end of sequence, and end of turn where it has them."""
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    if keys[0] not in metadata:
        raise metadata.invalid(keys[0], "is missing from the file's metadata")
    ids = (metadata.token_id(key, vocabulary_size) for key in keys)
    return tuple(dict.fromkeys(token for token in ids if token is not None))


def _tensor_problems(
    path: Path, sources: Iterable[SourceTensor], tensors: Mapping[str, gguf.ReaderTensor]
) -> Iterable[Problem]:
    """What is wrong with the file's tensor table; alike problems are told once, with a count."""
    expected = {source.name: source.shape for source in sources}
    if missing := [name for name in expected if name not in tensors]:
        yield Problem(path, missing[0], None, f"is missing{_more(missing)}")
    if unknown := [name for name in tensors if name not in expected]:
        yield Problem(path, unknown[0], None, f"no Llama tensor known here{_more(unknown)}")
    unsupported: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        if name not in expected:
            continue
        shape = tuple(int(size) for size in reversed(tensor.shape))
        if shape != expected[name]:
            wanted = f"the metadata ask for the shape {list(expected[name])}"
            yield Problem(path, name, list(shape), wanted)
        elif not gguf_tensors.is_supported(tensor):
            unsupported.setdefault(tensor.tensor_type.name, []).append(name)
    for kind, names in unsupported.items():
        wanted = f"supported types are {gguf_tensors.supported_types()}{_more(names)}"
        yield Problem(path, names[0], kind, wanted)


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more tensors alike)" if len(names) > 1 else ""


def _sha256(path: Path, report: Progress) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            size = max(path.stat().st_size, 1)
            while chunk := file.read(_HASH_CHUNK):
                digest.update(chunk)
                report("hash", file.tell() / size)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidModel([Problem(path, "", None, f"cannot be read: {reason}")]) from error
    return digest.hexdigest()
