"""Which grammars' tables the ring has: a table is long, and sent once for all that share it."""

from __future__ import annotations


class SentTables:
    """Tables by the bytes of the aux region that they take, as the ring has them."""

    def __init__(self) -> None:
        self._sent: dict[tuple[int, int], int] = {}  # (start, end) -> the table's hash

    def must_send(self, start: int, end: int, content: int) -> bool:
        """Whether a table with the hash `content` is not there yet; from now on it is."""
        if self._sent.get((start, end)) == content:
            return False
        self.overwritten(start, end)
        self._sent[start, end] = content
        return True

    def overwritten(self, start: int, end: int) -> None:
        """Something else is sent to these bytes."""
        gone = [span for span in self._sent if span[0] < end and start < span[1]]
        for span in gone:
            del self._sent[span]

    def forget(self) -> None:
        """Nobody knows what has arrived."""
        self._sent.clear()
