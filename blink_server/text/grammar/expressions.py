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
_BEGIN = 257  # and for its beginning
_BEGINNING = "xyz"
_SENTINEL = "\U0010ffff"  # no character
_ANYTHING = "(?s:.)*"
_ASCII_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r\f\x0b"}
_ANCHORS = {"^", "$", r"\A", r"\z", r"\Z", r"\b", r"\B"}
_LOOK_AROUND = ("(?=", "(?!", "(?<=", "(?<!")
_REFERENCES = tuple("123456789k")
_ESCAPES = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}


@functools.cache
def _bytes_vocabulary() -> Vocabulary:
    tokens = {bytes([byte]): [byte] for byte in range(256)}
    return Vocabulary(_END, {**tokens, _BEGINNING.encode(): [_BEGIN]})


def expression(nfa: Nfa, start: int, source: str, path: str) -> int:
    """Texts that the expression matches as a whole. Raises `GrammarRefused`."""
    return _embed(nfa, start, source, path, escaped=False)


def pattern(nfa: Nfa, start: int, source: str, path: str) -> int:
    """The inside of a JSON string in whose value the expression finds a match.

    Raises `GrammarRefused`.
    """
    return _embed(nfa, start, source, path, escaped=True)


def _embed(nfa: Nfa, start: int, source: str, path: str, *, escaped: bool) -> int:
    nfa.where = path
    nfa.begin_slow(path)
    try:
        # Behind a match the library's index loses characters of several bytes. So every match gets
        # an end that no text has, and what leads to it by that end is final.
        # Its automaton also looks for matches that begin later, with sets of places that may be
        # without number. It gives that up where an alternative of less worth has matched: at the
        # first character of a beginning that is one token, so that the index has no state there.
        inner = _anchored(source, path, whole=not escaped)
        index = Index(f"{_BEGINNING}(?:{inner}){_SENTINEL}|{_BEGINNING[0]}", _bytes_vocabulary())
    except ValueError as error:
        nothing = "Found no transitions" in str(error)
        reason = "matches no text" if nothing else f"cannot be compiled: {error}"
        raise GrammarRefused(path, reason) from None
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
    nfa.link(start, states[transitions[index.get_initial_state()][_BEGIN]])
    end = nfa.state()
    last = set(index.get_final_states())
    for state in transitions:
        at: int | None = state
        for byte in _SENTINEL.encode():
            at = None if at is None else transitions.get(at, {}).get(byte)
        if at in last:
            nfa.link(states[state], end)
    return end


def _anchored(source: str, path: str, *, whole: bool) -> str:
    """The expression that matches whole texts, in the library's syntax and without anchors.

    Raises `GrammarRefused` for anchors within.
    """
    if foreign := _foreign(source):
        raise GrammarRefused(path, f"has {foreign}, which is not supported")
    parts = []
    for part in _alternatives(source):
        begins, ends = part.startswith("^"), part.endswith("$") and not _is_escaped(part)
        inner = part[1 if begins else 0 : -1 if ends else None]
        if anchors := _ANCHORS & {token for token, in_class in _tokens(inner) if not in_class}:
            reason = f"has {min(anchors)} elsewhere than at an end of an alternative"
            raise GrammarRefused(path, reason)
        before = "" if begins or whole else _ANYTHING
        parts.append(f"{before}(?:{_ascii(inner)}){'' if ends or whole else _ANYTHING}")
    return "|".join(parts)


def _foreign(source: str) -> str | None:
    """What other engines have and Rust's has not."""
    outside = [token for token, in_class in _tokens(source) if not in_class]
    references = [token for token in outside if token[0] == "\\" and token[1:] in _REFERENCES]
    # An escaped parenthesis begins no group.
    plain = "".join(token if len(token) == 1 else " " for token in outside)
    groups = [group for group in _LOOK_AROUND if group in plain]
    return next(iter(references + groups), None)


def _is_escaped(part: str) -> bool:
    """Whether the last character has an odd number of backslashes before it."""
    body = part[:-1]
    return (len(body) - len(body.rstrip("\\"))) % 2 == 1


def _tokens(source: str) -> list[tuple[str, bool]]:
    """Its characters, a backslash together with what it escapes; whether each is in a class."""
    tokens, at, in_class = [], 0, False
    while at < len(source):
        length = 2 if source[at] == "\\" and at + 1 < len(source) else 1
        token = source[at : at + length]
        tokens.append((token, in_class))
        in_class = token != "]" if in_class else token == "["
        at += length
    return tokens


def _alternatives(source: str) -> list[str]:
    """What stands between the `|` outside of all groups and classes."""
    parts, depth = [""], 0
    for token, in_class in _tokens(source):
        if token in "()" and not in_class:
            depth += 1 if token == "(" else -1
        if token == "|" and depth == 0 and not in_class:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _ascii(source: str) -> str:
    """With `\\d`, `\\w`, `\\s` and their complements spelled out."""
    written = []
    for token, in_class in _tokens(source):
        ranges = _ASCII_CLASSES.get(token[1:].lower()) if len(token) == 2 else None
        if ranges is not None:
            negated = "^" if token[1].isupper() else ""
            inside = in_class and not negated
            token = ranges if inside else f"[{negated}{ranges}]"
        written.append(token)
    return "".join(written)
