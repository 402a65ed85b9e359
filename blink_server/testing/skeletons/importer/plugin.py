"""The importer `my_plugin`: a folder with shape.json, weights.npz and tokenizer.json.

Replace it by one of your format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blink_server.errors import InvalidModel, Problem
from blink_server.hookspecs import hookimpl
from blink_server.importers.checkpoint import Architecture, Tensor
from blink_server.importers.importer import Importer, Progress


@dataclass
class MyCheckpoint:
    """Fulfils `blink_server.importers.checkpoint.Checkpoint`."""

    architecture: Architecture
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    tokenizer_json: str
    chat_template: str | None
    source: Mapping[str, Any]
    weights: Mapping[str, Any]

    def tensor_names(self) -> list[str]:
        return list(self.weights)

    def tensor(self, name: str) -> Tensor:
        return np.asarray(self.weights[name], np.float32)


def open_checkpoint(source: str, *, revision: str | None, progress: Progress) -> MyCheckpoint:
    directory = Path(source)
    progress("weights", 0.0)
    try:
        architecture = Architecture(**json.loads((directory / "shape.json").read_text()))
        weights = np.load(directory / "weights.npz")
        tokenizer = (directory / "tokenizer.json").read_text()
    except (OSError, ValueError, TypeError) as error:
        raise InvalidModel([Problem(directory, "", None, f"cannot be read: {error}")]) from error
    progress("weights", 1.0)
    return MyCheckpoint(
        architecture=architecture,
        eos_token_ids=(0,),
        bos_token_id=None,
        tokenizer_json=tokenizer,
        chat_template=None,
        source={"directory": directory.name},
        weights=weights,
    )


@hookimpl
def blink_importers() -> Mapping[str, Importer]:
    return {"my_plugin": open_checkpoint}
