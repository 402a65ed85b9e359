"""Numbers between bounds, digit by digit."""

from __future__ import annotations

from blink_server.text.grammar.nfa import Nfa

_FRACTION_DIGITS = 15  # with those before the point what a double holds


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
    nfa: Nfa, start: int, low: int | None, high: int | None, *, above: bool, below: bool
) -> int | None:
    """A number without an exponent between whole bounds; `above`, `below` exclude them.

    None where there is none.
    """
    if low is not None and high is not None and (low > high or (low == high and (above or below))):
        return None
    least = None if low is None else low + above
    most = None if high is None else high - below
    digits = max(len(str(abs(bound))) for bound in (low or 0, high or 0))
    end = nfa.state()
    whole = integer_between(nfa, start, least, most)
    if whole is not None:
        nfa.link(whole, end)
    for negative in (False, True):
        # Magnitudes m with a fraction lie between m and m + 1.
        first, last = (_negated(high), _negated(low)) if negative else (low, high)
        if last is not None and last <= 0:
            continue
        begin = max(first or 0, 0)
        at = nfa.byte(start, 0x2D) if negative else start
        inner = nfa.state()
        _natural(nfa, at, begin, None if last is None else last - 1, inner)
        _fraction(nfa, inner, end, _FRACTION_DIGITS - digits)
    return end


def _negated(bound: int | None) -> int | None:
    return None if bound is None else -bound


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


def _fraction(nfa: Nfa, start: int, end: int, most: int) -> None:
    """A point and up to `most` digits, the last of which is not 0."""
    at = nfa.byte(start, 0x2E)
    for _ in range(max(most, 1)):
        nfa.edge(at, 0x31, 0x39, end)
        at = nfa.byte(at, 0x30, 0x39)
