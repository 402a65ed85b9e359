"""JSON as text: the pieces that schemas are put together from.

Between tokens there is one space or none; a model that may write any white space can write it for
ever. Numbers have no such bound: how many digits follow is the model's choice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from blink_server.text.grammar.nfa import Nfa, Piece

_DIGITS = (0x30, 0x39)
# What a string may hold of ASCII as it is: neither control characters nor `"` nor `\`.
_PLAIN = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7F))
_HEX = ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66))
_NOT_D = ((0x30, 0x39), (0x41, 0x43), (0x45, 0x46), (0x61, 0x63), (0x65, 0x66))


class Member(NamedTuple):
    """A property of an object: its name and how its value is added."""

    name: str
    value: Piece
    required: bool


class JsonText:
    """Adds JSON to an automaton; as in `Nfa`, from a state to a state."""

    def __init__(self, nfa: Nfa) -> None:
        self.nfa = nfa

    def space(self, start: int) -> int:
        """One space or none."""
        return self.nfa.optional(start, lambda at: self.nfa.byte(at, 0x20))

    def literal(self, start: int, value: Any) -> int:
        """One value, as `json.dumps` writes it."""
        return self.nfa.text(start, _written(value))

    def literals(self, start: int, values: Iterable[Any]) -> int:
        """One of these values."""
        return self.nfa.texts(start, map(_written, values))

    def string(self, start: int, least: int = 0, most: int | None = None) -> int:
        """A string of `least` to `most` characters (code points)."""

        def inside(at: int) -> int:
            if most is None:
                for _ in range(least):
                    at = self._character(at)
                at = self.nfa.link(at, self.nfa.state())
                self._character(at, at)
                return at
            return self.nfa.repeat(at, self._character, least, most)

        return self.quoted(start, inside)

    def quoted(self, start: int, inside: Piece) -> int:
        """A string with this between its quotes."""
        return self.nfa.byte(inside(self.nfa.byte(start, 0x22)), 0x22)

    def _character(self, start: int, end: int | None = None) -> int:
        """One character of a string, written in any way but by surrogates."""
        nfa = self.nfa
        end = nfa.state() if end is None else end
        nfa.character(start, _PLAIN, end)
        escape = nfa.byte(start, 0x5C)
        for letter in b'"\\/bfnrt':
            nfa.edge(escape, letter, letter, end)
        after_u = nfa.byte(escape, 0x75)
        second, third, fourth, not_high = (nfa.state() for _ in range(4))
        for low_digit, high_digit in _NOT_D:
            nfa.edge(after_u, low_digit, high_digit, second)
        for letter in (0x44, 0x64):  # D800 to DFFF are no characters
            nfa.edge(after_u, letter, letter, not_high)
        nfa.edge(not_high, 0x30, 0x37, third)
        for one, other in ((second, third), (third, fourth), (fourth, end)):
            for low_digit, high_digit in _HEX:
                nfa.edge(one, low_digit, high_digit, other)
        return end

    def integer(self, start: int) -> int:
        """A whole number without an exponent."""
        nfa = self.nfa
        signed = nfa.optional(start, lambda at: nfa.byte(at, 0x2D))
        end = nfa.byte(signed, 0x30)
        digits = nfa.byte(signed, 0x31, 0x39)
        nfa.edge(digits, *_DIGITS, digits)
        nfa.link(digits, end)
        return end

    def number(self, start: int) -> int:
        """Any number."""
        nfa = self.nfa

        def digits(at: int) -> int:
            some = nfa.byte(at, *_DIGITS)
            nfa.edge(some, *_DIGITS, some)
            return some

        def exponent(at: int) -> int:
            letter = nfa.state()
            nfa.edge(at, 0x45, 0x45, letter)
            nfa.edge(at, 0x65, 0x65, letter)
            sign = nfa.state()
            for byte in b"+-":
                nfa.edge(letter, byte, byte, sign)
            nfa.link(letter, sign)
            return digits(sign)

        whole = self.integer(start)
        fraction = nfa.optional(whole, lambda at: digits(nfa.byte(at, 0x2E)))
        return nfa.optional(fraction, exponent)

    def object(self, start: int, members: Sequence[Member]) -> int:
        """An object of these members, in their order; those not required may be left out."""
        nfa = self.nfa
        none = self.space(nfa.byte(start, 0x7B))  # nothing written yet
        some = nfa.state()
        for name, value, required in members:
            key = nfa.state()
            nfa.link(none, key)
            nfa.link(self._comma(some), key)
            none_after, some_after = nfa.state(), nfa.state()
            if not required:
                nfa.link(none, none_after)
                nfa.link(some, some_after)
            nfa.link(value(self._colon(self.literal(key, name))), some_after)
            none, some = none_after, some_after
        end = nfa.state()
        nfa.edge(none, 0x7D, 0x7D, end)
        nfa.edge(self.space(some), 0x7D, 0x7D, end)
        return end

    def map(self, start: int, key: Piece, value: Piece, least: int, most: int | None) -> int:
        """An object of any keys; `key` adds one with its quotes."""

        def member(at: int) -> int:
            return value(self._colon(key(at)))

        return self._list(start, b"{}", member, least, most)

    def array(
        self, start: int, first: Sequence[Piece], item: Piece | None, least: int, most: int | None
    ) -> int:
        """An array that begins with `first`, then has up to `most` of `item`, at least `least`."""
        if not first:
            return self._list(start, b"[]", item, least, most)
        nfa = self.nfa
        at = self.space(nfa.byte(start, 0x5B))
        for place, piece in enumerate(first):
            at = piece(self._comma(at) if place else at)
        if item is not None:
            more = item
            at = nfa.repeat(at, lambda before: more(self._comma(before)), least, most)
        return nfa.byte(self.space(at), 0x5D)

    def _list(
        self, start: int, brackets: bytes, item: Piece | None, least: int, most: int | None
    ) -> int:
        nfa = self.nfa
        at = self.space(nfa.byte(start, brackets[0]))
        end = nfa.state()
        if least == 0:
            nfa.edge(at, brackets[1], brackets[1], end)
        if item is None or most == 0:
            return end
        if most is None and least <= 1:
            # One copy of the item serves for the first and for those that follow.
            begin = nfa.link(at, nfa.state())
            last = item(begin)
            nfa.link(self._comma(last), begin)
        else:
            rest = None if most is None else most - 1
            last = nfa.repeat(item(at), lambda b: item(self._comma(b)), max(least - 1, 0), rest)
        nfa.edge(self.space(last), brackets[1], brackets[1], end)
        return end

    def _comma(self, start: int) -> int:
        return self.space(self.nfa.byte(start, 0x2C))

    def _colon(self, start: int) -> int:
        return self.space(self.nfa.byte(start, 0x3A))

    def value(self, start: int, depth: int) -> int:
        """Any value with at most `depth` arrays and objects in one another."""
        nfa = self.nfa
        pieces: list[Piece] = [
            self.string,
            self.number,
            lambda at: self.literal(at, True),
            lambda at: self.literal(at, False),
            lambda at: self.literal(at, None),
        ]
        if depth > 0:
            pieces.append(lambda at: self.any_object(at, depth))
            pieces.append(
                lambda at: self.array(at, (), lambda inner: self.value(inner, depth - 1), 0, None)
            )
        return nfa.any_of(start, pieces)

    def any_object(self, start: int, depth: int) -> int:
        """Any object, itself counted in `depth`."""
        return self.map(start, self.string, lambda at: self.value(at, depth - 1), 0, None)


def _written(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
