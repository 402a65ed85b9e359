"""From the specs of `constraint.py` to automata."""

from __future__ import annotations

from functools import partial

from blink_server.text.grammar import expressions
from blink_server.text.grammar.automaton import Automaton, determinize
from blink_server.text.grammar.constraint import Spec
from blink_server.text.grammar.json_schema import DEEPEST, JsonSchema
from blink_server.text.grammar.json_text import JsonText
from blink_server.text.grammar.nfa import Nfa
from blink_server.text.grammar.refusal import GrammarRefused


def compile_spec(spec: Spec, nfa: Nfa | None = None) -> Automaton:
    """The automaton of its texts. Raises `GrammarRefused`."""
    nfa = Nfa() if nfa is None else nfa
    automaton = determinize(nfa, _add(nfa, spec, 0))
    if not automaton.accepting.any():
        raise GrammarRefused(spec.get("path", ""), "allows no text at all")
    return automaton


def _add(nfa: Nfa, spec: Spec, start: int) -> int:
    path = nfa.where = spec.get("path", "")
    match spec["type"]:
        case "json_object":
            return JsonText(nfa).any_object(start, DEEPEST)
        case "json_schema":
            return _add_schema(nfa, spec, path, start)
        case "regex":
            return expressions.expression(nfa, start, spec["source"], path)
        case "choice":
            return nfa.texts(start, (text.encode() for text in spec["texts"]))
        case "text":
            return nfa.text(start, spec["text"].encode())
        case "not_containing":
            return _not_containing(nfa, spec["text"].encode(), start)
        case "sequence":
            for part in spec["parts"]:
                start = _add(nfa, part, start)
            return start
        case "any_of":
            return nfa.any_of(start, [partial(_add, nfa, part) for part in spec["parts"]])
        case "repeat":
            piece = partial(_add, nfa, spec["part"])
            return nfa.repeat(start, piece, spec["least"], spec["most"])
    raise ValueError(f"no constraint is of type {spec['type']!r}")


def _add_schema(nfa: Nfa, spec: Spec, path: str, start: int) -> int:
    # Of its own, since what was added before a refusal stays there, with nothing behind it.
    begin = nfa.link(start, nfa.state())
    try:
        return JsonSchema(nfa, spec["schema"], path=path).document(begin)
    except GrammarRefused:
        if not spec.get("or_any_object"):
            raise
        return JsonText(nfa).any_object(start, DEEPEST)


def _not_containing(nfa: Nfa, text: bytes, start: int) -> int:
    """Well-formed UTF-8 in which the ASCII `text` does not occur, by the tables of Knuth, Morris
    and Pratt: a state for each length of it that could have begun."""
    states = [nfa.state() for _ in text]
    nfa.link(start, states[0])
    for matched, state in enumerate(states):
        longest = {
            byte: next(
                n
                for n in range(matched + 1, -1, -1)
                if (text[:matched] + bytes([byte])).endswith(text[:n])
            )
            for byte in set(text)
        }
        for byte in range(0x80):
            after = longest.get(byte, 0)
            if after < len(text):
                nfa.edge(state, byte, byte, states[after])
        nfa.character(state, (), states[0])
    end = nfa.state()
    for state in states:
        nfa.link(state, end)
    return end
