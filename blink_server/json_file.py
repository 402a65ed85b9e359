"""Reads a JSON file strictly: what is doubtful is refused, with the line and column of it."""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blink_server.errors import InvalidModel, Problem

MAX_BYTES = 4 << 20
"""Configuration is small; whatever is larger is some other file under its name."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


def read_json(path: Path) -> Any:
    """The document in a UTF-8 JSON file.

    Raises InvalidModel for a file that cannot be read, is no regular file, empty or over 4 MiB,
    is not UTF-8 or begins with a byte order mark, is not JSON, or holds a number that is not
    finite or a key twice in one object (all such places are reported together).
    """
    text = _decode(path, read_bytes(path, MAX_BYTES))
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}:{error.colno}"
        raise _invalid(path, f"is not JSON at {place}: {_lower(error.msg)}") from None
    except RecursionError:
        raise _invalid(path, "nests too deeply to be configuration") from None
    except ValueError as error:  # a whole number of thousands of digits
        raise _invalid(path, f"holds a number that cannot be read: {error}") from None
    problems = list(_doubtful(path, text))
    if problems:
        raise InvalidModel(problems)
    return document


def read_bytes(path: Path, limit: int) -> bytes:
    """The bytes of a regular file that is not empty. Raises InvalidModel, also over `limit`."""
    try:
        # Opening a FIFO or a device could block: look at the type first.
        if not stat.S_ISREG(path.stat().st_mode):
            raise _invalid(path, "must be a regular file")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise _invalid(path, "is missing") from None
    except OSError as error:
        raise _invalid(path, f"cannot be read: {error.strerror}") from None
    if not data:
        raise _invalid(path, "is empty")
    if len(data) > limit:
        raise _invalid(path, f"is larger than {limit} bytes, too large to be configuration")
    return data


def _decode(path: Path, data: bytes) -> str:
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise _invalid(path, "begins with a byte order mark at line 1:1; save it as plain UTF-8")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        raise _invalid(path, f"is not UTF-8 at line {_place(before, len(before))}") from None


def _doubtful(path: Path, text: str) -> Iterator[Problem]:
    """Walk the tokens of valid JSON and find what `json.loads` lets pass."""
    keys: list[set[str]] = []
    tokens = list(_TOKEN.finditer(text))
    for index, match in enumerate(tokens):
        token = match.group()
        if token in "{[":
            keys.append(set())
        elif token in "}]":
            keys.pop()
        elif token.startswith('"'):
            if index + 1 < len(tokens) and tokens[index + 1].group() == ":":
                key = json.loads(token)
                if key in keys[-1]:
                    place = _place(text, match.start())
                    yield Problem(path, "", None, f"has the key {key!r} twice, at line {place}")
                keys[-1].add(key)
        elif token not in (":", ",", "true", "false", "null") and not math.isfinite(float(token)):
            place = _place(text, match.start())
            yield Problem(path, "", None, f"has {token} at line {place}; numbers must be finite")


def _place(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    return f"{line}:{column}"


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _invalid(path: Path, expected: str) -> InvalidModel:
    return InvalidModel([Problem(path, "", None, expected)])
