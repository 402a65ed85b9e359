"""Constraints on an answer's text: from schemas and expressions to byte-level automata."""
