"""A GGUF file's header: opened within its bounds, and its metadata read by key and type.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from blink_server.errors import InvalidModel, Problem


@dataclass(frozen=True, slots=True)
class Metadata:
    """Metadata of one file. Every getter raises `InvalidModel` naming the file, key and value."""

    path: Path
    values: Mapping[str, Any]

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def text(self, key: str) -> str:
        """The string of `key`."""
        value = self._required(key)
        if not isinstance(value, str):
            raise self.invalid(key, "must be a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """The boolean of `key`, or `default` where the file has none."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.invalid(key, "must be a boolean")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """The positive integer of `key`, or `default` where the file has none."""
        value = self._required(key) if default is None else self.values.get(key, default)
        if not _is_integer(value) or value < 1:
            raise self.invalid(key, "must be a positive integer")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """The positive finite number of `key`, or `default` where the file has none."""
        value = self._required(key) if default is None else self.values.get(key, default)
        number = float(value) if _is_integer(value) or isinstance(value, float) else math.nan
        if not math.isfinite(number) or number <= 0:
            raise self.invalid(key, "must be a positive finite number")
        return number

    def token_id(self, key: str, vocabulary_size: int) -> int | None:
        """The token id of `key`, below `vocabulary_size`, or None where the file has none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not _is_integer(value) or not 0 <= value < vocabulary_size:
            raise self.invalid(key, f"must be a token id from 0 to {vocabulary_size - 1}")
        return int(value)

    def texts(self, key: str) -> list[str]:
        """The array of strings of `key`."""
        value = self._required(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.invalid(key, "must be an array of strings", show_value=False)
        return value

    def integers(self, key: str) -> list[int]:
        """The array of integers of `key`."""
        value = self._required(key)
        if not isinstance(value, list) or not all(_is_integer(item) for item in value):
            raise self.invalid(key, "must be an array of integers", show_value=False)
        return value

    def numbers(self, key: str) -> list[float]:
        """The array of finite numbers of `key`."""
        value = self._required(key)
        is_numbers = isinstance(value, list) and all(
            _is_integer(item) or (isinstance(item, float) and math.isfinite(item)) for item in value
        )
        if not is_numbers:
            raise self.invalid(key, "must be an array of finite numbers", show_value=False)
        return [float(item) for item in value]

    def invalid(self, key: str, expected: str, *, show_value: bool = True) -> InvalidModel:
        """The error that says what `key` should be instead of what it is."""
        value = self.values.get(key) if show_value else None
        return InvalidModel([Problem(self.path, key, value, expected)])

    def _required(self, key: str) -> Any:
        if key not in self.values:
            raise self.invalid(key, "is missing from the file's metadata")
        return self.values[key]


def read_header(path: Path) -> tuple[Metadata, dict[str, gguf.ReaderTensor]]:
    """Read metadata and tensor table; tensor data stay on disk, mapped into memory.

    Raises `InvalidModel` for a file that is missing, unreadable, damaged, cut short, of another
    byte order, or one shard of several.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InvalidModel([Problem(path, "", None, "is not a regular file")])
        with np.errstate(over="raise"):
            reader = _BoundedReader(path)
        values = {key: field.contents() for key, field in reader.fields.items()}
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidModel([Problem(path, "", None, f"cannot be read: {reason}")]) from error
    except (ValueError, LookupError, ArithmeticError, TypeError) as error:
        expected = f"is not a whole GGUF file: damaged, cut short or of another format ({error})"
        raise InvalidModel([Problem(path, "", None, expected)]) from error
    metadata = Metadata(path, values)
    if reader.byte_order != "I":
        raise InvalidModel([Problem(path, "", None, "has another byte order than this machine")])
    if values.get("split.count", 1) not in (0, 1):
        raise metadata.invalid("split.count", "is one shard of several; merge them into one file")
    return metadata, {tensor.name: tensor for tensor in reader.tensors}


class _BoundedReader(gguf.GGUFReader):
    """A reader that stops at the end of the file.

    The library's own takes what is missing as empty, and so walks through the billions of
    entries that a damaged length promises.
    """

    def _get(
        self, offset: int, dtype: npt.DTypeLike, count: int = 1, *args: Any, **kwargs: Any
    ) -> npt.NDArray[Any]:
        end = int(offset) + np.dtype(dtype).itemsize * int(count)
        if end > self.data.nbytes:
            raise ValueError(f"byte {end} is asked for, the file has {self.data.nbytes}")
        return super()._get(offset, dtype, count, *args, **kwargs)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
