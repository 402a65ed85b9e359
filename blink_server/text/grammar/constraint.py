"""What an answer's text must be, as plain JSON: it goes to a process of its own to be compiled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Spec = Mapping[str, Any]
"""One of:

    {"type": "json_object"}
    {"type": "json_schema", "schema": ..., "or_any_object": whether any object will do where the
                                           schema cannot be held}
    {"type": "regex", "source": ...}               {"type": "choice", "texts": [...]}
    {"type": "text", "text": ...}                  {"type": "not_containing", "text": ...}
    {"type": "sequence", "parts": [...]}           {"type": "any_of", "parts": [...]}
    {"type": "repeat", "part": ..., "least": n, "most": n or null}

A part may have a "path": where in the request it came from, for messages.
"""


@dataclass(frozen=True)
class Constraint:
    """`param`: the request's field that asks for it. `optional`: where the constraint cannot be
    compiled, any text will do."""

    spec: Spec
    param: str
    optional: bool = False

    @cached_property
    def key(self) -> str:
        """Equal for equal texts; the order of properties counts."""
        return json.dumps(self.spec)


def text(value: str) -> Spec:
    """This text."""
    return {"type": "text", "text": value}


def sequence(*parts: Spec) -> Spec:
    """One part behind the other."""
    return {"type": "sequence", "parts": parts}


def any_of(*parts: Spec) -> Spec:
    """One of the parts."""
    return {"type": "any_of", "parts": parts}


def repeat(part: Spec, least: int = 0, most: int | None = None) -> Spec:
    """The part `least` to `most` times."""
    return {"type": "repeat", "part": part, "least": least, "most": most}


OPTIONAL_SPACE: Spec = {"type": "choice", "texts": ("", " ")}
