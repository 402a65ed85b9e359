"""Regular expressions, compiled by outlines_core and taken into an automaton.

The library indexes an expression over a vocabulary; over one whose tokens are the 256 bytes, its
index is the expression's automaton. The syntax is that of Rust's regex crate: no look-around, no
back-references. `\\d`, `\\w` and `\\s` mean ASCII, as in JSON Schema.
"""

from __future__ import annotations

import functools
from itertools import groupby

from outlines_core import Index, Vocabulary

from blink_server.text.grammar.nfa import Nfa
from blink_server.text.grammar.refusal import GrammarRefused

_END = 256  # stands for the end of the text
_ANYTHING = "(?s:.)*"
_ASCII_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r\f\x0b"}
_ESCAPES = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}


@functools.cache
def _bytes_vocabulary() -> Vocabulary:
    return Vocabulary(_END, {bytes([byte]): [byte] for byte in range(256)})


def expression(nfa: Nfa, start: int, source: str, path: str) -> int:
    """Texts that the expression matches as a whole. Raises `GrammarRefused`."""
    return _embed(nfa, start, _anchored(source, whole=True), path, escaped=False)


def pattern(nfa: Nfa, start: int, source: str, path: str) -> int:
    """The inside of a JSON string in whose value the expression finds a match.

    Raises `GrammarRefused`.
    """
    return _embed(nfa, start, _anchored(source, whole=False), path, escaped=True)


def _embed(nfa: Nfa, start: int, source: str, path: str, *, escaped: bool) -> int:
    nfa.where = path
    nfa.begin_slow(path)
    try:
        index = Index(source, _bytes_vocabulary())
    except ValueError as error:
        raise GrammarRefused(path, f"cannot be compiled: {error}") from None
    transitions: dict[int, dict[int, int]] = index.get_transitions()
    states = {state: nfa.state() for state in transitions}
    for state, moves in transitions.items():
        plain = sorted((b, to) for b, to in moves.items() if b < _END and to in states)
        for byte, to in plain:
            if escaped and (byte in _ESCAPES or byte < 0x20):
                text = _ESCAPES.get(byte, b"\\u%04x" % byte)
                nfa.link(nfa.text(states[state], text), states[to])
        kept = [(b, to) for b, to in plain if not (escaped and (b in _ESCAPES or b < 0x20))]
        for _, run in groupby(enumerate(kept), lambda item: (item[1][0] - item[0], item[1][1])):
            members = [entry for _, entry in run]
            nfa.edge(states[state], members[0][0], members[-1][0], states[members[0][1]])
    nfa.link(start, states[index.get_initial_state()])
    end = nfa.state()
    for state in index.get_final_states():
        nfa.link(states[state], end)
    return end


def _anchored(source: str, *, whole: bool) -> str:
    """The expression that matches whole texts, in the library's syntax and without anchors."""
    parts = []
    for part in _alternatives(source):
        begins, ends = part.startswith("^"), part.endswith("$") and not _is_escaped(part)
        inner = part[1 if begins else 0 : -1 if ends else None]
        before = "" if begins or whole else _ANYTHING
        parts.append(f"{before}(?:{_ascii(inner)}){'' if ends or whole else _ANYTHING}")
    return "|".join(parts)


def _is_escaped(part: str) -> bool:
    """Whether the last character has an odd number of backslashes before it."""
    body = part[:-1]
    return (len(body) - len(body.rstrip("\\"))) % 2 == 1


def _tokens(source: str) -> list[str]:
    """Its characters, a backslash together with what it escapes."""
    tokens, at = [], 0
    while at < len(source):
        length = 2 if source[at] == "\\" and at + 1 < len(source) else 1
        tokens.append(source[at : at + length])
        at += length
    return tokens


def _alternatives(source: str) -> list[str]:
    """What stands between the `|` outside of all groups and classes."""
    parts, depth, in_class = [""], 0, False
    for token in _tokens(source):
        if in_class:
            in_class = token != "]"
        elif token == "[":
            in_class = True
        elif token in "()":
            depth += 1 if token == "(" else -1
        elif token == "|" and depth == 0:
            parts.append("")
            continue
        parts[-1] += token
    return parts


def _ascii(source: str) -> str:
    """With `\\d`, `\\w`, `\\s` and their complements spelled out."""
    written, in_class = [], False
    for token in _tokens(source):
        ranges = _ASCII_CLASSES.get(token[1:].lower()) if len(token) == 2 else None
        if ranges is not None:
            negated = "^" if token[1].isupper() else ""
            inside = in_class and not negated
            token = ranges if inside else f"[{negated}{ranges}]"
        elif not in_class and token == "[":
            in_class = True
        elif in_class and token == "]":
            in_class = False
        written.append(token)
    return "".join(written)
