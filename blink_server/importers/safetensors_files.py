"""The tensors of a model's safetensors files, mapped into memory and read one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  lets numpy and safetensors know bfloat16
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from blink_server.errors import InvalidModel, Problem
from blink_server.json_file import read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FLOAT_TYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file: its type and shape are known, its values stay on disk."""

    file: Path
    name: str
    dtype: str  # as safetensors says it: "F32", "BF16", "I64", ...
    shape: tuple[int, ...]
    _handle: Any

    def read(self, rows: slice = slice(None)) -> npt.NDArray[np.float32]:
        """The values as float32, a copy of the caller's own. The dtype is one of `FLOAT_TYPES`.

        Raises `InvalidModel` where a value is infinite or undefined.
        """
        values = np.asarray(self._handle.get_slice(self.name)[rows]).astype(np.float32, copy=False)
        if not np.isfinite(values).all():
            raise InvalidModel(
                [Problem(self.file, self.name, None, "holds infinite or undefined values")]
            )
        return values


def open_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of a directory's `model.safetensors`, or of the files that its index lists.

    Raises `InvalidModel` for files that are missing, unreadable, damaged or cut short, an index
    that names other directories, and tensors that are not where the index says.
    """
    if not (directory / INDEX_FILE).exists():
        return _open_file(directory / SINGLE_FILE)
    places = _read_index(directory / INDEX_FILE)
    files = {name: _open_file(directory / name) for name in dict.fromkeys(places.values())}
    if missing := [name for name, file in places.items() if name not in files[file]]:
        expected = f"is not in {places[missing[0]]}, where the index says it is"
        raise InvalidModel([Problem(directory / INDEX_FILE, missing[0], None, expected)])
    return {name: files[file][name] for name, file in places.items()}


def weight_file_names(directory: Path) -> list[str]:
    """The files that hold a directory's tensors: those of its index, else the single one.

    Raises `InvalidModel` for an index that is no index.
    """
    if not (directory / INDEX_FILE).exists():
        return [SINGLE_FILE]
    return list(dict.fromkeys(_read_index(directory / INDEX_FILE).values()))


def _read_index(path: Path) -> Mapping[str, str]:
    document = read_json(path)
    places = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(places, dict) or not places:
        raise InvalidModel([Problem(path, "weight_map", None, "must map tensors to files")])
    for name, file in places.items():
        if not isinstance(file, str) or Path(file).name != file:
            expected = "must be the name of a file in the same directory"
            raise InvalidModel([Problem(path, f"weight_map.{name}", file, expected)])
    return places


def _open_file(path: Path) -> dict[str, StoredTensor]:
    if not path.is_file():
        expected = "is missing (weights are read from safetensors files only)"
        raise InvalidModel([Problem(path, "", None, expected)])
    try:
        handle: Any = safe_open(path, framework="np")
        return {name: _stored(path, name, handle) for name in handle.keys()}  # noqa: SIM118
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise InvalidModel([Problem(path, "", None, reason)]) from error
    except SafetensorError as error:
        expected = f"is not a whole safetensors file ({error})"
        raise InvalidModel([Problem(path, "", None, expected)]) from error


def _stored(path: Path, name: str, handle: Any) -> StoredTensor:
    part = handle.get_slice(name)
    return StoredTensor(path, name, part.get_dtype(), tuple(part.get_shape()), handle)
