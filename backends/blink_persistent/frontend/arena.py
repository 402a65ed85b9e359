"""Spans of 4-byte words inside one range's arena.

Free spans are kept by size class, eight classes to a doubling, as in two-level segregated fit:
a span of a higher class always fits, so finding one is a look at the lowest set bit of a mask.
Neighbouring free spans are joined at once.
"""

from __future__ import annotations

_CLASS_BITS = 3  # classes to a doubling: 2 ** this


def _class_of(words: int) -> int:
    """The size class of a span; sizes below 16 have a class each."""
    shift = max(words.bit_length() - 1 - _CLASS_BITS, 0)
    return (shift << _CLASS_BITS) + (words >> shift)


class Arena:
    """Allocator of an arena of `words` words; offsets count from its start. Not thread-safe."""

    def __init__(self, words: int) -> None:
        self.words = words
        self.free_words = 0
        self._taken: dict[int, int] = {}  # start -> words
        self._lengths: dict[int, int] = {}  # start of a free span -> words
        self._starts: dict[int, int] = {}  # end of a free span -> start
        self._classes: list[dict[int, None]] = [{} for _ in range(_class_of(words) + 1)]
        self._filled = 0  # bit c is set where class c has a span
        if words:
            self._add(0, words)

    def allocate(self, words: int) -> int | None:
        """The offset of a span of `words` >= 1, or None where no free span is as long.

        Constant time but for a nearly full arena, where the spans of one class are searched.
        """
        if words < 1:
            raise ValueError(f"a span has 1 word or more, not {words}")
        start = self._find(words)
        if start is None:
            return None
        length = self._remove(start)
        if length > words:
            self._add(start + words, length - words)
        self._taken[start] = words
        return start

    def free(self, offset: int) -> None:
        """Give back the span that `allocate` returned. Raises ValueError where it is not taken."""
        words = self._taken.pop(offset, None)
        if words is None:
            raise ValueError(f"no span taken begins at word {offset}")
        end = offset + words
        if end in self._lengths:
            end += self._remove(end)
        if offset in self._starts:
            before = self._starts[offset]
            self._remove(before)
            offset = before
        self._add(offset, end - offset)

    def _find(self, words: int) -> int | None:
        own = _class_of(words)
        if own >= len(self._classes):
            return None
        # The newest span of the own class first: equal requests reuse each other's space, which
        # is warm, instead of cutting up a longer span.
        candidates = self._classes[own]
        if candidates:
            newest = next(reversed(candidates))
            if self._lengths[newest] >= words:
                return newest
        higher = self._filled >> (own + 1)
        if higher:
            lowest = own + (higher & -higher).bit_length()
            return next(reversed(self._classes[lowest]))
        return next((start for start in candidates if self._lengths[start] >= words), None)

    def _add(self, start: int, words: int) -> None:
        self._lengths[start] = words
        self._starts[start + words] = start
        size_class = _class_of(words)
        self._classes[size_class][start] = None
        self._filled |= 1 << size_class
        self.free_words += words

    def _remove(self, start: int) -> int:
        words = self._lengths.pop(start)
        del self._starts[start + words]
        size_class = _class_of(words)
        spans = self._classes[size_class]
        del spans[start]
        if not spans:
            self._filled &= ~(1 << size_class)
        self.free_words -= words
        return words
