"""Why a constraint cannot be held."""

from __future__ import annotations


class GrammarRefused(Exception):
    """`path` leads from the constraint to what is refused ("properties.age.multipleOf")."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason
