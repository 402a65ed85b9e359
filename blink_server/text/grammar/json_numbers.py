"""Numbers between bounds, digit by digit."""

from __future__ import annotations

import math
from decimal import Decimal

from blink_server.text.grammar.nfa import Nfa

MOST_DIGITS = 15
"""Of a bound, and of a number between two, before and after the point: what a double holds."""


def integer_between(nfa: Nfa, start: int, low: int | None, high: int | None) -> int | None:
    """A whole number from `low` to `high`; None where there is none."""
    if low is not None and high is not None and low > high:
        return None
    end = nfa.state()
    if high is None or high >= 0:
        _natural(nfa, start, max(low or 0, 0), high, end)
    if low is None or low < 0:
        most = None if low is None else -low
        least = 1 if high is None or high >= 0 else -high
        _natural(nfa, nfa.byte(start, 0x2D), least, most, end)
    return end


def number_between(
    nfa: Nfa,
    start: int,
    low: Decimal | None,
    high: Decimal | None,
    *,
    above: bool,
    below: bool,
) -> int | None:
    """A number without an exponent between bounds; `above`, `below` exclude them.

    Its last decimal is not 0. None where there is none.
    """
    wholes = [len(str(abs(int(bound)))) for bound in (low, high) if bound is not None]
    places = max(MOST_DIGITS - max(wholes, default=1), 1)
    # From here on numbers are whole: so many units in the last place.
    least = None if low is None else least_whole(low.scaleb(places), above=above)
    most = None if high is None else most_whole(high.scaleb(places), below=below)
    if least is not None and most is not None and least > most:
        return None
    units = _Units(nfa, places)
    if most is None or most >= 0:
        units.between(start, max(least or 0, 0), most)
    if least is None or least < 0:
        nearest = 1 if most is None or most >= 0 else -most
        units.between(nfa.byte(start, 0x2D), nearest, None if least is None else -least)
    return units.end


def least_whole(bound: Decimal, *, above: bool) -> int:
    """The first whole number that a lower bound allows; `above`: not the bound itself."""
    return math.floor(bound) + 1 if above else math.ceil(bound)


def most_whole(bound: Decimal, *, below: bool) -> int:
    """The last whole number that an upper bound allows; `below`: not the bound itself."""
    return math.ceil(bound) - 1 if below else math.floor(bound)


class _Units:
    """Adds numbers >= 0 of up to `places` decimals, told as whole numbers of the last of them."""

    def __init__(self, nfa: Nfa, places: int) -> None:
        self._nfa = nfa
        self._places = places
        self._unit = 10**places
        self.end = nfa.state()
        # From the state n any n digits or fewer lead to the end, the last of which is not 0.
        self._any = [nfa.state() for _ in range(places + 1)]
        for shorter, longer in zip(self._any, self._any[1:], strict=False):
            nfa.edge(longer, 0x31, 0x39, self.end)
            nfa.edge(longer, 0x30, 0x39, shorter)

    def between(self, start: int, least: int, most: int | None) -> None:
        """From `least` to `most`."""
        first, low = divmod(least, self._unit)
        last, high = (None, 0) if most is None else divmod(most, self._unit)
        if first == last:
            self._fraction(self._whole(start, first), low, high)
            return
        begin, finish = first, last  # of the whole numbers that any fraction may follow
        if low > 0:
            self._fraction(self._whole(start, first), low, self._unit - 1)
            begin = first + 1
        if last is not None and high < self._unit - 1:
            self._fraction(self._whole(start, last), 0, high)
            finish = last - 1
        if finish is None or begin <= finish:
            whole = self._nfa.state()
            _natural(self._nfa, start, begin, finish, whole)
            self._fraction(whole, 0, self._unit - 1)

    def _whole(self, start: int, number: int) -> int:
        return self._nfa.text(start, str(number).encode())

    def _fraction(self, start: int, low: int, high: int) -> None:
        """What follows a whole number: nothing, or a point and decimals."""
        if low == 0:
            self._nfa.link(start, self.end)
        if high > 0:
            places = self._places
            self._decimals(self._nfa.byte(start, 0x2E), f"{low:0{places}}", f"{high:0{places}}")

    def _decimals(self, start: int, low: str, high: str) -> None:
        """At least one, the last not 0; as if filled up with zeros, between `low` and `high`."""
        if not low.strip("0") and not high.strip("9"):
            self._nfa.link(start, self._any[len(low)])
            return
        zeros, nines = "0" * (len(low) - 1), "9" * (len(low) - 1)
        first, last = ord(low[0]), ord(high[0])
        ranges = [(first, first, low[1:], high[1:])]
        if first < last:
            ranges = [(first, first, low[1:], nines), (last, last, zeros, high[1:])]
            if first + 1 < last:
                ranges.append((first + 1, last - 1, zeros, nines))
        for least, most, rest_low, rest_high in ranges:
            if not rest_low.strip("0") and most > 0x30:
                self._nfa.edge(start, max(least, 0x31), most, self.end)
            if rest_high.strip("0"):
                self._decimals(self._nfa.byte(start, least, most), rest_low, rest_high)


def _natural(nfa: Nfa, start: int, low: int, high: int | None, end: int) -> None:
    """A number from `low` >= 0 to `high`, without leading zeros."""
    longest = len(str(low)) if high is None else len(str(high))
    for length in range(len(str(low)), longest + 1):
        least = max(low, 10 ** (length - 1) if length > 1 else 0)
        most = 10**length - 1 if high is None else min(high, 10**length - 1)
        _digits(nfa, start, str(least), str(most), end)
    if high is None:
        longer = nfa.byte(start, 0x31, 0x39)
        for _ in range(longest):
            longer = nfa.byte(longer, 0x30, 0x39)
        nfa.edge(longer, 0x30, 0x39, longer)
        nfa.link(longer, end)


def _digits(nfa: Nfa, start: int, low: str, high: str, end: int) -> None:
    """Numbers of as many digits as `low` and `high` have, between them."""
    if set(low) <= {"0"} and set(high) <= {"9"}:
        for _ in low:
            start = nfa.byte(start, 0x30, 0x39)
        nfa.link(start, end)
    elif low[0] == high[0]:
        _digits(nfa, nfa.byte(start, ord(low[0])), low[1:], high[1:], end)
    else:
        nines, zeros = "9" * (len(low) - 1), "0" * (len(low) - 1)
        first, last = ord(low[0]), ord(high[0])
        _digits(nfa, nfa.byte(start, first), low[1:], nines, end)
        if last - first > 1:
            _digits(nfa, nfa.byte(start, first + 1, last - 1), zeros, nines, end)
        _digits(nfa, nfa.byte(start, last), zeros, high[1:], end)
