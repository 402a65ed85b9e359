"""A file's tensors against those that its architecture asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from blink_server.errors import Problem


class TensorEntry(NamedTuple):
    """What a file says of a tensor, and whether values of that type can be read from it."""

    shape: tuple[int, ...]
    type_name: str
    is_readable: bool


def table_problems(
    path: Path,
    expected: Mapping[str, tuple[int, ...]],
    found: Mapping[str, TensorEntry],
    readable_types: str,
) -> Iterator[Problem]:
    """What is missing, unknown, misshapen or of an unreadable type; alike problems told once."""
    if missing := [name for name in expected if name not in found]:
        yield Problem(path, missing[0], None, f"is missing{_more(missing)}")
    if unknown := [name for name in found if name not in expected]:
        yield Problem(path, unknown[0], None, f"is no tensor of this architecture{_more(unknown)}")
    unreadable: dict[str, list[str]] = {}
    for name, entry in found.items():
        if name not in expected:
            continue
        if entry.shape != expected[name]:
            wanted = f"the architecture asks for the shape {list(expected[name])}"
            yield Problem(path, name, list(entry.shape), wanted)
        elif not entry.is_readable:
            unreadable.setdefault(entry.type_name, []).append(name)
    for kind, names in unreadable.items():
        yield Problem(path, names[0], kind, f"supported types are {readable_types}{_more(names)}")


def _more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more tensors alike)" if len(names) > 1 else ""
