"""Random small JSON Schemas of what structured outputs hold, for property tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from blink_server.text.grammar.refusal import GrammarRefused

NAMES = st.sampled_from(["a", "b", 'q"\\', "é"])
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.just({"type": "string"}),
    st.builds(
        lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "number"}]),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "exclusiveMaximum": low + more},
        st.integers(-150, 150),
        st.integers(1, 300),
    ),
    st.builds(
        lambda low, more: {"type": "number", "exclusiveMinimum": low, "maximum": low + more},
        st.integers(-15, 15),
        st.integers(1, 30),
    ),
    st.builds(
        lambda ends: {"type": "number", "minimum": min(ends), "exclusiveMaximum": max(ends)},
        st.lists(st.decimals(-20, 20, places=3).map(float), min_size=2, max_size=2, unique=True),
    ),
    st.builds(
        lambda values: {"enum": values}, st.lists(st.sampled_from([1, "x", None, [1]]), min_size=1)
    ),
    st.builds(lambda value: {"const": value}, st.sampled_from([{"k": [True]}, "é\n", 0])),
    st.sampled_from([{"type": "string", "pattern": p} for p in ("^[a-c]+$", "\\d", "^x|y$", '"')]),
    st.sampled_from([{"type": "string", "format": f} for f in ("date", "time", "uuid", "ipv4")]),
)


def _object(properties: dict[str, Any], required: list[str], closed: bool) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": sorted(set(required))}
    return {**schema, "additionalProperties": False} if closed else schema


def _extended(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    counts = st.tuples(st.integers(0, 2), st.integers(0, 2))
    return st.one_of(
        st.builds(
            _object,
            st.dictionaries(NAMES, inner, max_size=3),
            st.lists(st.sampled_from(["a", "b"]), max_size=2),
            st.just(False),
        ),
        st.builds(lambda value: {"type": "object", "additionalProperties": value}, inner),
        st.builds(
            lambda item, n: {"type": "array", "items": item, "minItems": n[0], "maxItems": sum(n)},
            inner,
            counts,
        ),
        st.builds(lambda item: {"type": "array", "items": item, "minItems": 1}, inner),
        st.builds(
            lambda first, rest: {"type": "array", "prefixItems": first, "items": rest},
            st.lists(inner, min_size=1, max_size=2),
            st.one_of(st.just(False), inner),
        ),
        st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(
            lambda part: {"$ref": "#/$defs/x", "$defs": {"x": part}, "title": "named"}, SCALARS
        ),
    )


SCHEMAS = st.recursive(SCALARS, _extended, max_leaves=6)


def rooted(schema: Any) -> Any:
    """The schema with the definition that references in its parts mean."""
    if "$ref" not in str(schema):
        return schema
    return {"$defs": {"x": {"type": "integer"}}, "allOf": [schema]}


@contextmanager
def small_enough() -> Iterator[None]:
    """Leaves an example out whose automaton would be too large, which is refused rightly."""
    try:
        yield
    except GrammarRefused as refused:
        assume("needs more than" not in refused.reason)
        raise
