"""Automata over bytes: states are added as a text is described, from left to right.

Each method that adds a piece takes the state it begins in and returns the one it ends in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from blink_server.text.grammar.refusal import GrammarRefused

MOST_STATES = 100_000

Piece = Callable[[int], int]
"""Adds something that begins in a state; returns the state it ends in."""

_Range = tuple[int, int]  # bytes, both included

# Well-formed UTF-8 of more than one byte (Unicode, table 3-7): first byte, second, how many follow.
_UTF8: tuple[tuple[_Range, _Range, int], ...] = (
    ((0xC2, 0xDF), (0x80, 0xBF), 0),
    ((0xE0, 0xE0), (0xA0, 0xBF), 1),
    ((0xE1, 0xEC), (0x80, 0xBF), 1),
    ((0xED, 0xED), (0x80, 0x9F), 1),
    ((0xEE, 0xEF), (0x80, 0xBF), 1),
    ((0xF0, 0xF0), (0x90, 0xBF), 2),
    ((0xF1, 0xF3), (0x80, 0xBF), 2),
    ((0xF4, 0xF4), (0x80, 0x8F), 2),
)


class Nfa:
    """A nondeterministic automaton; state 0 is the first.

    edges: for each state, (first byte, last byte, next state). empties: for each, the states that
    are reached without a byte. `where` names what is
    being added, for the refusal of too much of it.
    """

    def __init__(self, most_states: int = MOST_STATES) -> None:
        self.edges: list[list[tuple[int, int, int]]] = []
        self.empties: list[list[int]] = []
        self.where = ""
        self._most = most_states
        self.state()

    def begin_slow(self, path: str) -> None:
        """What follows may take any time; for whoever watches."""

    def state(self) -> int:
        """A new state. Raises `GrammarRefused` where there are too many."""
        if len(self.edges) >= self._most:
            raise GrammarRefused(self.where, f"needs more than {self._most} states")
        self.edges.append([])
        self.empties.append([])
        return len(self.edges) - 1

    def edge(self, start: int, low: int, high: int, end: int) -> None:
        """A byte from `low` to `high` leads from one state to the other."""
        self.edges[start].append((low, high, end))

    def link(self, start: int, end: int) -> int:
        """Nothing leads from one state to the other; returns `end`."""
        self.empties[start].append(end)
        return end

    def byte(self, start: int, low: int, high: int | None = None) -> int:
        """A byte from `low` to `high`."""
        end = self.state()
        self.edge(start, low, low if high is None else high, end)
        return end

    def text(self, start: int, data: bytes) -> int:
        """These bytes."""
        for value in data:
            start = self.byte(start, value)
        return start

    def texts(self, start: int, texts: Iterable[bytes]) -> int:
        """One of these texts; what they begin with alike is added once."""
        end = self.state()
        known: dict[tuple[int, int], int] = {}
        for text in texts:
            at = start
            for byte in text:
                if (at, byte) not in known:
                    known[at, byte] = self.byte(at, byte)
                at = known[at, byte]
            self.link(at, end)
        return end

    def optional(self, start: int, piece: Piece) -> int:
        """The piece, or nothing."""
        end = self.link(piece(start), self.state())
        return self.link(start, end)

    def any_of(self, start: int, pieces: Iterable[Piece]) -> int:
        """One of the pieces."""
        end = self.state()
        for piece in pieces:
            # Of its own, so that a piece which comes back to its start stays within itself.
            self.link(piece(self.link(start, self.state())), end)
        return end

    def repeat(self, start: int, piece: Piece, least: int, most: int | None) -> int:
        """The piece `least` to `most` times, any number of times where that is None."""
        for _ in range(least):
            start = piece(start)
        if most is None:
            loop = self.link(start, self.state())
            self.link(piece(loop), loop)
            return self.link(loop, self.state())
        end = self.state()
        for _ in range(most - least):
            self.link(start, end)
            start = piece(start)
        return self.link(start, end)

    def character(self, start: int, ascii_ranges: Iterable[_Range], end: int) -> None:
        """One character, in UTF-8: of these ASCII ranges, or any beyond ASCII."""
        for low, high in ascii_ranges:
            self.edge(start, low, high, end)
        last = [end]  # before 0, 1 and 2 more bytes
        for _ in range(2):
            before = self.state()
            self.edge(before, 0x80, 0xBF, last[-1])
            last.append(before)
        for first, second, follow in _UTF8:
            after = self.state()
            self.edge(start, *first, after)
            self.edge(after, *second, last[follow])
