"""What an error about a name says of the names that would have been right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_COMPARED = 64  # names, and characters of each: no stream goes on meanwhile
_SHOWN = 10


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` of the nearest; "" where none is near."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def suggestion(name: str, known: Sequence[str], verb: str) -> str:
    """`did you mean 'x'?`, or where no name is near `x serves`, `x, y and 3 more serve`.

    `verb`: what the known names do.
    """
    cut = {candidate[:_COMPARED]: candidate for candidate in known[:_COMPARED]}
    near = difflib.get_close_matches(name[:_COMPARED], cut, n=1)
    return f"did you mean {cut[near[0]]!r}?" if near else enumeration(known, verb)


def enumeration(names: Sequence[str], verb: str) -> str:
    """`x serves`, `x, y serve`, `none serves`; of many names the first."""
    shown = ", ".join(names[:_SHOWN]) or "none"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{shown}{more} {verb}{'s' * (len(names) < 2)}"
