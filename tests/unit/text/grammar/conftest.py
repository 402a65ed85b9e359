from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blink_server.text.grammar.automaton import Automaton
from blink_server.text.grammar.specs import compile_spec


def compiled(schema: Any) -> Automaton:
    return compile_spec({"type": "json_schema", "schema": schema, "path": "schema"})


def random_text(automaton: Automaton, chance: random.Random, longest: int = 400) -> str | None:
    """A random walk to the end of a text; None where it has not ended after `longest` bytes."""
    state, text = 0, bytearray()
    while len(text) < longest:
        moves = np.flatnonzero(automaton.next[state, automaton.class_of] >= 0).tolist()
        if automaton.accepting[state] and (not moves or chance.random() < 0.3):
            return text.decode()  # raises where it is no UTF-8
        # Ends are rare among a string's bytes: they are tried more often than the others.
        ends = [byte for byte in moves if byte in b'"}],']
        byte = chance.choice(ends if ends and chance.random() < 0.4 else moves)
        text.append(byte)
        state = int(automaton.next[state, automaton.class_of[byte]])
    return None


@pytest.fixture(scope="session")
def walk() -> Callable[..., str | None]:
    return random_text


@pytest.fixture(scope="session")
def schema_automaton() -> Callable[[Any], Automaton]:
    return compiled
