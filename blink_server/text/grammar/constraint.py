"""What an answer's text must be, as plain JSON: it goes to a process of its own to be compiled.

    {"type": "json_object"}                        {"type": "json_schema", "schema": ...}
    {"type": "regex", "source": ...}               {"type": "choice", "texts": [...]}
    {"type": "text", "text": ...}                  {"type": "not_containing", "text": ...}
    {"type": "sequence", "parts": [...]}           {"type": "any_of", "parts": [...]}
    {"type": "repeat", "part": ..., "least": n, "most": n or null}

A part may have a "path": where in the request it came from, for messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from blink_server.text.grammar import expressions
from blink_server.text.grammar.automaton import Automaton, determinize
from blink_server.text.grammar.json_schema import DEEPEST, JsonSchema
from blink_server.text.grammar.json_text import JsonText
from blink_server.text.grammar.nfa import Nfa
from blink_server.text.grammar.refusal import GrammarRefused

Spec = Mapping[str, Any]


@dataclass(frozen=True)
class Constraint:
    """`param`: the request's field that asks for it."""

    spec: Spec
    param: str

    @cached_property
    def key(self) -> str:
        """Equal for equal texts; the order of properties counts."""
        return json.dumps(self.spec)


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
            return JsonSchema(nfa, spec["schema"], path=path).document(start)
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
