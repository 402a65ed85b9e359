"""How long to wait between tries of what has failed."""

from __future__ import annotations


class Backoff:
    """`first` seconds, then twice as long each time, `longest` at most; not for several tasks."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def next(self, lasted: float = 0.0) -> float:
        """Seconds to wait before the next try.

        A try that lasted `lasted` seconds before it failed was a success if that is `longest`.
        """
        if lasted >= self._longest:
            self.reset()
        seconds = self._next
        self._next = min(2 * seconds, self._longest)
        return seconds

    def reset(self) -> None:
        """It has succeeded: begin with `first` again."""
        self._next = self._first
