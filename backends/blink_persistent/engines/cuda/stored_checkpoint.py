"""A version of the engine `cuda` as a checkpoint, for who builds another version of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  lets numpy and safetensors know bfloat16
import numpy as np
from safetensors import safe_open

from blink_persistent.engines.cuda.weight_file import read_stored_architecture
from blink_server.backend import ModelVersion
from blink_server.importers.checkpoint import Architecture, Tensor


class StoredCheckpoint:
    """Fulfils `Checkpoint`: what `write_weights` wrote, and the texts beside it.

    `weight_path` is that file, for who reads it as it lies: bfloat16, in the order of
    `Architecture.tensor_shapes`.
    """

    def __init__(self, version: ModelVersion, weight_path: Path) -> None:
        """Raises InvalidModel for a file that is not whole."""
        self.weight_path = weight_path
        self._version = version
        self._architecture = read_stored_architecture(weight_path)

    @property
    def architecture(self) -> Architecture:
        return self._architecture

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return tuple(self._version.config["eos_token_ids"])

    @property
    def bos_token_id(self) -> int | None:
        found: int | None = self._version.config["bos_token_id"]
        return found

    @property
    def tokenizer_json(self) -> str:
        return self._text(self._version.config["tokenizer"]["file"]) or ""

    @property
    def chat_template(self) -> str | None:
        return self._text(self._version.config["chat_template"])

    @property
    def source(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._version.config["source"]
        return found

    def tensor_names(self) -> list[str]:
        return list(self._architecture.tensor_shapes())

    def tensor(self, name: str) -> Tensor:
        """The tensor of a canonical name, float32, a copy of the caller's own. Raises KeyError."""
        if name not in self._architecture.tensor_shapes():
            raise KeyError(name)
        return np.asarray(self._file.get_tensor(name)).astype(np.float32)

    @cached_property
    def _file(self) -> Any:
        return safe_open(self.weight_path, framework="np")

    def _text(self, name: str | None) -> str | None:
        if name is None:
            return None
        return (self._version.directory / name).read_bytes().decode()
