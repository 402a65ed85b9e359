"""Spans of bytes joined into as few as possible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Joined:
    """A span [start, end) that covers `members`, (start, end) each."""

    __slots__ = ("end", "members", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.members = [(start, end)]


def join(spans: Iterable[tuple[int, int]], *, gap: int = 0, longest: int = 1 << 62) -> list[Joined]:
    """Join spans (start, end) at most `gap` bytes apart, up to `longest` bytes a joined span.

    A span that is longer by itself is cut. Empty spans are left out; the rest comes in order.
    """
    joined: list[Joined] = []
    for start, end in sorted(_pieces(spans, longest)):
        last = joined[-1] if joined else None
        if last is not None and start <= last.end + gap and end - last.start <= longest:
            last.end = max(last.end, end)
            last.members.append((start, end))
        else:
            joined.append(Joined(start, end))
    return joined


def _pieces(spans: Iterable[tuple[int, int]], longest: int) -> Iterator[tuple[int, int]]:
    for start, end in spans:
        for first in range(start, end, longest):
            yield first, min(first + longest, end)
