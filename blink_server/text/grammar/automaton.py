"""Deterministic automata over bytes: what backends get of a constraint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blink_server.text.grammar.nfa import Nfa


@dataclass(frozen=True, slots=True, eq=False)
class Automaton:
    """State 0 is the first; every state is reachable, and can reach one where a text may end.

    class_of: uint8 [256], bytes that are alike. next: int32 [states, classes], -1 where the byte
    is refused. accepting: uint8 [states], 1 where a text may end. digest: equal for equal automata.
    """

    class_of: npt.NDArray[np.uint8]
    next: npt.NDArray[np.int32]
    accepting: npt.NDArray[np.uint8]
    digest: str

    def accepts(self, data: bytes) -> bool:
        """Whether these bytes are one of its texts."""
        state = 0
        for byte in data:
            state = int(self.next[state, self.class_of[byte]])
            if state < 0:
                return False
        return bool(self.accepting[state])


def determinize(nfa: Nfa, final: int) -> Automaton:
    """The automaton of the texts that lead from state 0 to `final`, by subsets of states.

    Without any such text its first state accepts nothing and leads nowhere.
    """
    class_of, classes_of = _byte_classes(nfa)
    closures: dict[int, tuple[int, ...]] = {}
    first = _closure(nfa, 0, closures)
    numbers = {first: 0}
    found = [first]
    rows: list[dict[int, int]] = []
    for members in found:  # grows
        moves: dict[int, set[int]] = {}
        for member in members:
            for low, high, target in nfa.edges[member]:
                for byte_class in classes_of[low, high]:
                    moves.setdefault(byte_class, set()).add(target)
        row: dict[int, int] = {}
        for byte_class, targets in moves.items():
            subset = _joined(nfa, targets, closures)
            number = numbers.setdefault(subset, len(found))
            if number == len(found):
                found.append(subset)
            row[byte_class] = number
        rows.append(row)
    accepting = np.fromiter((final in members for members in map(set, found)), np.uint8, len(found))
    return _trimmed(class_of, rows, accepting)


def _byte_classes(nfa: Nfa) -> tuple[npt.NDArray[np.uint8], dict[tuple[int, int], range]]:
    """Each byte's class, and the classes of each range of bytes that an edge has."""
    ranges = {(low, high) for edges in nfa.edges for low, high, _ in edges}
    borders = sorted({low for low, _ in ranges} | {high + 1 for _, high in ranges} | {0})
    class_of = (np.searchsorted(borders, np.arange(257), "right") - 1).astype(np.int64)
    classes_of = {
        (low, high): range(int(class_of[low]), int(class_of[high]) + 1) for low, high in ranges
    }
    return class_of[:256].astype(np.uint8), classes_of


def _closure(nfa: Nfa, state: int, known: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """The state and all that are reached from it without a byte, in ascending order."""
    if state not in known:
        reached, open_states = {state}, [state]
        while open_states:
            for target in nfa.empties[open_states.pop()]:
                if target not in reached:
                    reached.add(target)
                    open_states.append(target)
        known[state] = tuple(sorted(reached))
    return known[state]


def _joined(nfa: Nfa, states: set[int], known: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    closures = [_closure(nfa, state, known) for state in states]
    return closures[0] if len(closures) == 1 else tuple(sorted(set().union(*closures)))


def _trimmed(
    class_of: npt.NDArray[np.uint8], rows: list[dict[int, int]], accepting: npt.NDArray[np.uint8]
) -> Automaton:
    """Without the states from which no text ends."""
    sources: list[list[int]] = [[] for _ in rows]
    for state, row in enumerate(rows):
        for target in row.values():
            sources[target].append(state)
    lives = accepting.astype(bool)
    open_states = np.flatnonzero(lives).tolist()
    while open_states:
        for source in sources[open_states.pop()]:
            if not lives[source]:
                lives[source] = True
                open_states.append(source)
    lives[0] = True
    number = np.where(lives, np.cumsum(lives) - 1, -1).tolist()
    kept = np.flatnonzero(lives)
    following = np.full((len(kept), int(class_of.max()) + 1), -1, np.int32)
    for place, state in enumerate(kept.tolist()):
        for byte_class, target in rows[state].items():
            following[place, byte_class] = number[target]
    content = hashlib.sha256(str(following.shape).encode())
    for array in (class_of, following, accepting[kept]):
        content.update(array.tobytes())
    return Automaton(class_of, following, accepting[kept], content.hexdigest())
