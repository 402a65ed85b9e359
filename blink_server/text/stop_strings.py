"""Stop strings: found across any split of the text, and never shown in part."""

from __future__ import annotations

from collections.abc import Sequence


class _Automaton:
    """Knuth-Morris-Pratt: after each character, how much of `stop` the text now ends with."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._failure = [0] * len(stop)
        length = 0
        for place in range(1, len(stop)):
            while length and stop[place] != stop[length]:
                length = self._failure[length - 1]
            if stop[place] == stop[length]:
                length += 1
            self._failure[place] = length

    def step(self, character: str) -> bool:
        """Take one character of text; True when it completes the stop string."""
        matched, stop = self.matched, self.stop
        while matched and stop[matched] != character:
            matched = self._failure[matched - 1]
        self.matched = matched = matched + 1 if stop[matched] == character else 0
        return matched == len(stop)


class StopStrings:
    """Passes a text on until the first stop string that ends in it.

    What could be the beginning of a stop string is held back: at most the longest one's length
    less one character. `found` is the stop string that ended the text, None before; the longest
    of those that end on the same character. With `include` it stays part of the text.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """`stops`: non-empty strings; none at all passes every text on as it comes."""
        if not all(stops):
            raise ValueError("a stop string is empty")
        longest_first = sorted(set(stops), key=len, reverse=True)
        self._automata = [_Automaton(stop) for stop in longest_first]
        self._include = include
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Add text; returns what is safe to show. After a match nothing is added or returned."""
        if not self._automata:
            return text
        if self.found is not None:
            return ""
        for place, character in enumerate(text):
            # Every automaton must see the character, so that none falls out of step.
            ended = [automaton for automaton in self._automata if automaton.step(character)]
            if ended:
                return self._end(self._held + text[: place + 1], ended[0].stop)
        text = self._held + text
        keep = max(automaton.matched for automaton in self._automata)
        safe = len(text) - keep
        self._held = text[safe:]
        return text[:safe]

    def _end(self, text: str, stop: str) -> str:
        self.found = stop
        self._held = ""
        return text if self._include else text[: len(text) - len(stop)]

    def flush(self) -> str:
        """What was held back; the text has ended without completing a stop string."""
        held, self._held = self._held, ""
        return held
