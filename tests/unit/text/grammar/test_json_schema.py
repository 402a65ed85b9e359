"""Texts of a schema's automaton fulfil the schema; schemas that cannot be held are refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from blink_server.testing.random_schemas import SCHEMAS, rooted, small_enough
from blink_server.text.grammar.automaton import Automaton
from blink_server.text.grammar.json_types import FORMATS
from blink_server.text.grammar.refusal import GrammarRefused

Compile = Callable[[Any], Automaton]
Walk = Callable[..., str | None]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_every_text_is_json_that_fulfils_the_schema(
    schema_automaton: Compile, walk: Walk, schema: Any, seed: int
) -> None:
    root = rooted(schema)
    with small_enough():
        automaton = schema_automaton(root)
    validator = Draft202012Validator(root, format_checker=Draft202012Validator.FORMAT_CHECKER)
    chance = random.Random(seed)
    for _ in range(10):
        text = walk(automaton, chance)
        if text is not None:
            validator.validate(json.loads(text))


@pytest.mark.parametrize(("low", "high"), [(-120, 7), (0, 0), (5, 5003), (-3, -3), (99, 101)])
def test_whole_numbers_between_bounds_are_all_there(
    schema_automaton: Compile, low: int, high: int
) -> None:
    automaton = schema_automaton({"type": "integer", "minimum": low, "maximum": high})
    found = [n for n in range(low - 200, high + 200) if automaton.accepts(str(n).encode())]
    assert found == list(range(low, high + 1))
    assert not automaton.accepts(b"-0")
    assert not automaton.accepts(b"07")


@pytest.mark.parametrize("bound", [{"minimum": 95}, {"exclusiveMaximum": -95}])
def test_numbers_bounded_on_one_side_go_on_for_ever(schema_automaton: Compile, bound: Any) -> None:
    automaton = schema_automaton({"type": "integer", **bound})
    validator = Draft202012Validator(bound)
    for number in (*range(-1200, 1200), 10**30, -(10**30)):
        assert automaton.accepts(str(number).encode()) == validator.is_valid(number)


def thousandths(first: int, last: int) -> Iterator[str]:
    """As JSON has them, without zeros at the end."""
    for number in range(first, last):
        yield str(Decimal(number).scaleb(-3).normalize() + 0)


@pytest.mark.parametrize(
    "bounds",
    [
        {"minimum": 0.5, "maximum": 1.25},
        {"exclusiveMinimum": 0.5, "exclusiveMaximum": 1.25},
        {"minimum": -1.5, "exclusiveMaximum": 0.001},
        {"exclusiveMinimum": -0.102, "maximum": -0.099},
        {"minimum": 0.7, "maximum": 0.7},
        {"exclusiveMinimum": -1, "exclusiveMaximum": 1},
        {"minimum": 1.999, "exclusiveMinimum": 1.5},
        {"maximum": -0.25},
        {"minimum": 1e-9, "maximum": 1e-3},
    ],
)
@pytest.mark.parametrize("kind", ["number", "integer"])
def test_bounds_may_have_decimals(schema_automaton: Compile, kind: str, bounds: Any) -> None:
    schema = {"type": kind, **bounds}
    validator = Draft202012Validator(schema)
    texts = list(thousandths(-2500, 2500))
    right = [text for text in texts if validator.is_valid(json.loads(text))]
    if kind == "integer" and not right:
        with pytest.raises(GrammarRefused, match="has no value"):
            schema_automaton(schema)
        return
    automaton = schema_automaton(schema)
    assert [text for text in texts if automaton.accepts(text.encode())] == right


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    bounds=st.lists(st.decimals(-3, 3, places=2), min_size=2, max_size=2, unique=True),
    names=st.tuples(
        st.sampled_from(["minimum", "exclusiveMinimum"]),
        st.sampled_from(["maximum", "exclusiveMaximum"]),
    ),
)
def test_numbers_between_any_bounds_are_all_there(
    schema_automaton: Compile, bounds: list[Decimal], names: tuple[str, str]
) -> None:
    low, high = map(float, sorted(bounds))
    schema = {"type": "number", names[0]: low, names[1]: high}
    automaton, validator = schema_automaton(schema), Draft202012Validator(schema)
    for text in thousandths(-3100, 3100):
        assert automaton.accepts(text.encode()) == validator.is_valid(json.loads(text)), text


def test_the_bounds_of_a_whole_number_that_a_double_holds(schema_automaton: Compile) -> None:
    most = 2**53 - 1
    automaton = schema_automaton({"type": "integer", "minimum": -most, "maximum": most})
    for number in (most, -most, 0, most // 7):
        assert automaton.accepts(str(number).encode())
    for number in (most + 1, -most - 1, 10**17):
        assert not automaton.accepts(str(number).encode())


def test_objects_have_their_properties_in_order(schema_automaton: Compile) -> None:
    integer = {"type": "integer"}
    schema = {"properties": {"a": integer, "b": integer, "c": integer}, "required": ["b"]}
    automaton = schema_automaton({"type": "object", **schema})
    for text in (b'{"b":1}', b'{"a": 1, "b": 2, "c": 3}', b'{ "b": 2,"c":3 }'):
        assert automaton.accepts(text)
    for text in (b"{}", b'{"a":1}', b'{"b":1,"a":2}', b'{"b":1,}', b'{"b":1,"d":1}', b'{"b":  1}'):
        assert not automaton.accepts(text)


def test_strings_may_be_escaped_in_every_way_but_by_surrogates(schema_automaton: Compile) -> None:
    automaton = schema_automaton({"type": "string", "minLength": 1, "maxLength": 1})
    for inside in ("a", "é", "字", "😀", "\\n", '\\"', "\\u00e9", "\\uFFFD", "\x7f"):
        assert automaton.accepts(f'"{inside}"'.encode())
    for wrong in (b'""', b'"ab"', b'"\n"', b'"\\ud83d"', b'"\\x"', b'"\xff"', b'"\xed\xa0\x80"'):
        assert not automaton.accepts(wrong)


NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
    "required": ["v"],
}


def test_references_to_themselves_end_after_eight_levels(schema_automaton: Compile) -> None:
    automaton = schema_automaton({"$ref": "#/$defs/node", "$defs": {"node": NODE}})

    def chain(length: int) -> bytes:
        text = '{"v": 1}'
        for _ in range(length - 1):
            text = '{"v": 1, "next": ' + text + "}"
        return text.encode()

    assert automaton.accepts(chain(1))
    assert automaton.accepts(chain(8))
    assert not automaton.accepts(chain(9))


def test_any_value_nests_eight_deep(schema_automaton: Compile) -> None:
    automaton = schema_automaton({})
    for depth, holds in ((0, True), (1, True), (8, True), (9, False)):
        assert automaton.accepts(b"[" * depth + b"null" + b"]" * depth) is holds


REFUSED: list[tuple[Any, str]] = [
    ({"not": {}}, "schema.not"),
    ({"type": "number", "multipleOf": 0.5}, "schema.multipleOf"),
    ({"type": "array", "uniqueItems": True}, "schema.uniqueItems"),
    ({"properties": {"a": {"if": {}}}}, "schema.properties.a.if"),
    ({"type": "string", "pattern": "(?=a)"}, "schema.pattern"),
    ({"type": "string", "pattern": "("}, "schema.pattern"),
    ({"type": "string", "pattern": "(^a|b)"}, "schema.pattern: has ^ elsewhere"),
    ({"type": "string", "pattern": "a", "maxLength": 3}, "schema.maxLength"),
    ({"type": "whole"}, "schema.type"),
    ({"required": "a"}, "schema.required"),
    ({"type": "number", "minimum": 0.30000000000000004}, "schema.minimum"),
    ({"type": "number", "exclusiveMaximum": 2**53}, "schema.exclusiveMaximum"),
    ({"type": "integer", "maximum": 10**20}, "schema.maximum"),
    ({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 1}, "schema"),
    ({"$ref": "http://other/schema"}, "schema.$ref"),
    ({"$ref": "#/$defs/none"}, "schema.$ref"),
    ({"$ref": "#"}, "schema.$ref"),
    ({"allOf": [{"$ref": "#/allOf/0"}]}, "schema.allOf"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "schema.oneOf.1"),
    ({"allOf": [{"type": "string"}, {"type": "null"}]}, "schema.allOf.type"),
    ({"type": "object", "minProperties": 2}, "schema.minProperties"),
    ({"enum": [f"{n:06}" * 4 for n in range(20_000)]}, "schema.enum"),
    ({"type": "string", "maxLength": 100_000}, "schema"),
    ({"type": "array", "items": {"type": "string"}, "maxItems": 100_000}, "schema"),
    ({"enum": [float("inf")]}, "Out of range"),
    (False, "schema"),
    ({"enum": ["a"], "type": "integer"}, "schema"),
    ({"const": 1, "enum": [2]}, "schema"),
    ({"allOf": [{"enum": [1]}, {"const": 2}]}, "schema"),
    ({"$ref": "#anchor"}, "schema.$ref: '#anchor' is not in this schema"),
    ({"$id": "a", "properties": {"b": {"$id": "b", "const": 1}}}, "schema.properties.b.$id"),
    (
        {"allOf": [{"additionalProperties": False}, {"properties": {"a": {}}}]},
        "schema.allOf.additionalProperties",
    ),
    (
        {
            "properties": {"a": {}},
            "additionalProperties": {"type": "null"},
            "anyOf": [{"properties": {"b": {}}}],
        },
        "schema.anyOf.0.additionalProperties",
    ),
    (
        {"allOf": [{"additionalProperties": False}, {"patternProperties": {"^a": {}}}]},
        "schema.allOf.additionalProperties",
    ),
    (
        {"allOf": [{"items": {"type": "null"}}, {"prefixItems": [{"const": 1}]}]},
        "schema.allOf.items",
    ),
]


@pytest.mark.parametrize(("schema", "named"), REFUSED, ids=[name for _, name in REFUSED])
def test_what_cannot_be_held_is_refused_by_name(
    schema_automaton: Compile, schema: Any, named: str
) -> None:
    with pytest.raises((GrammarRefused, ValueError)) as refused:
        schema_automaton(schema)
    assert str(refused.value).startswith(named)


def test_branches_may_demand_more_of_what_is_named(schema_automaton: Compile) -> None:
    flag = {"type": "boolean"}
    schema = {
        "$id": "whole",
        "properties": {"a": flag, "b": flag},
        "additionalProperties": False,
        "anyOf": [{"required": ["a"]}, {"properties": {"b": {"type": "boolean"}}}],
        "required": ["b"],
    }
    automaton = schema_automaton({"type": "object", **schema})
    assert automaton.accepts(b'{"a":true,"b":false}')
    assert not automaton.accepts(b'{"a":true}')


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_can_be_held(schema_automaton: Compile, walk: Walk, name: str) -> None:
    schema = {"type": "string", "format": name}
    automaton = schema_automaton(schema)
    texts = [walk(automaton, random.Random(seed)) for seed in range(20)]
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    assert any(texts)
    for text in filter(None, texts):
        validator.validate(json.loads(text))


def test_deep_schemas_are_refused(schema_automaton: Compile) -> None:
    schema: Any = {"type": "null"}
    for _ in range(70):
        schema = {"type": "array", "items": schema}
    with pytest.raises(GrammarRefused, match="nested more than 64 deep"):
        schema_automaton(schema)


def test_branches_that_a_tag_tells_apart_are_one_of(schema_automaton: Compile, walk: Walk) -> None:
    def tagged(kind: str, **properties: Any) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"kind": {"const": kind}, **properties},
            "required": ["kind"],
        }

    schema = {
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "discriminator": {"propertyName": "kind"},
        "$defs": {"cat": tagged("cat", lives={"type": "integer"}), "dog": tagged("dog")},
    }
    automaton = schema_automaton(schema)
    assert automaton.accepts(b'{"kind": "cat", "lives": 9}')
    assert not automaton.accepts(b'{"kind": "dog", "lives": 9}')
