"""What a JSON Schema says of objects, arrays, strings and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

from blink_server.text.grammar import expressions
from blink_server.text.grammar.json_numbers import (
    MOST_DIGITS,
    integer_between,
    least_whole,
    most_whole,
    number_between,
)
from blink_server.text.grammar.json_text import JsonText, Member
from blink_server.text.grammar.nfa import Nfa, Piece
from blink_server.text.grammar.refusal import GrammarRefused
from blink_server.text.grammar.schema_parts import Place, Schema, count, joined, short

_DATE = r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
    r"(?:Z|[+-](?:0[0-9]|1[0-3]):[0-5][0-9])"
)
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": r"P(?:[0-9]{1,4}D(?:T[0-9]{1,4}H)?|T[0-9]{1,4}[HMS]|[0-9]{1,4}[WMY])",
    "uuid": "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "email": rf"[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*@{_LABEL}(?:\.{_LABEL})+",
}
"""What is held of "format"; other formats are annotations, as the specification has it."""

_MOST_WHOLE_DIGITS = 20  # of a whole number's bounds: 64 bits

AddValue = Callable[[Any, int, Place], int | None]
"""Adds the values of a schema; None where it has none."""


class TypedValues:
    """Adds the values of one type that a schema allows."""

    def __init__(self, nfa: Nfa, add_value: AddValue) -> None:
        self._nfa = nfa
        self._json = JsonText(nfa)
        self._add_value = add_value

    def add(self, kind: str, schema: Schema, start: int, place: Place) -> int | None:
        """Values of type `kind`. Raises `GrammarRefused`."""
        match kind:
            case "object":
                return self._object(schema, start, place)
            case "array":
                return self._array(schema, start, place)
            case "string":
                return self._string(schema, start, place)
            case "integer" | "number":
                return self._number(kind, schema, start, place)
            case "boolean":
                return self._nfa.any_of(
                    start, [partial(self._json.literal, value=value) for value in (True, False)]
                )
        return self._json.literal(start, None)

    def _piece(self, schema: Any, place: Place) -> Piece | None:
        """The schema as a piece; None where it has no values.

        To find that out it is added once; that is what the piece's first use gives.
        """
        begin = self._nfa.state()
        end = self._add_value(schema, begin, place)
        if end is None:
            return None
        unused = [(begin, end)]

        def piece(at: int) -> int:
            if unused:
                first, last = unused.pop()
                self._nfa.link(at, first)
                return last
            again = self._add_value(schema, at, place)
            assert again is not None
            return again

        return piece

    def _object(self, schema: Schema, start: int, place: Place) -> int | None:
        path, properties = place.path, schema.get("properties", {})
        required, others = schema.get("required", []), schema.get("additionalProperties", True)
        patterns = schema.get("patternProperties") or {}
        unnamed = [name for name in required if name not in properties]
        if not properties and not unnamed:
            return self._map(schema, patterns, others, start, place)
        if patterns:
            raise GrammarRefused(
                joined(path, "patternProperties"), "is held without properties only"
            )
        if schema.get("propertyNames", True) not in (True, {}, {"type": "string"}):
            raise GrammarRefused(joined(path, "propertyNames"), "is held without properties only")
        if unnamed and others is False:
            return None
        members = []
        for name, part in {**properties, **dict.fromkeys(unnamed, others)}.items():
            value = self._piece(part, place.within("properties", name))
            if value is not None:
                members.append(Member(name, value, name in required))
            elif name in required:
                return None
        least, most = self._counts(schema, "Properties")
        sure = sum(member.required for member in members)
        if least > sure or (most is not None and most < len(members)):
            name = "minProperties" if least > sure else "maxProperties"
            raise GrammarRefused(joined(path, name), "is held without properties only")
        return self._json.object(start, members)

    def _map(
        self, schema: Schema, patterns: Any, others: Any, start: int, place: Place
    ) -> int | None:
        path, key = place.path, self._json.string
        least, most = self._counts(schema, "Properties")
        names = schema.get("propertyNames", True)
        if patterns:
            if len(patterns) > 1 or names is not True:
                raise GrammarRefused(joined(path, "patternProperties"), "must be one pattern alone")
            [(source, others)] = patterns.items()
            at = joined(path, "patternProperties", source)
            named: Piece | None = partial(self._patterned, source=source, path=at)
        elif names is True:
            named = key
        else:
            # Whatever the names' schema says, names are strings.
            merged = {**names, "type": "string"} if isinstance(names, dict) else names
            named = self._piece(merged, place.within("propertyNames"))
        value = self._piece(others, place.within("additionalProperties"))
        if named is None or value is None or most == 0:
            return self._json.object(start, ()) if least == 0 else None
        if least > 1:
            raise GrammarRefused(
                joined(path, "minProperties"), "is held up to 1: a name may be written twice"
            )
        return self._json.map(start, named, value, least, most)

    def _array(self, schema: Schema, start: int, place: Place) -> int | None:
        path = place.path
        least, most = self._counts(schema, "Items")
        if schema.get("uniqueItems") and (most is None or most > 1):
            raise GrammarRefused(joined(path, "uniqueItems"), "is not supported")
        prefix, items = schema.get("prefixItems", []), schema.get("items", True)
        first = [self._piece(part, place.within("prefixItems", n)) for n, part in enumerate(prefix)]
        whole = first if most is None else first[:most]
        possible = [piece for piece in whole if piece is not None]
        if len(possible) < len(whole):
            return None
        # A prefix may be cut short by the specification; it is written whole here.
        item = None if items is False else self._piece(items, place.within("items"))
        more = max(least - len(possible), 0)
        if item is None and more:
            return None
        if item is None or most is None:
            return self._json.array(start, possible, item, more, None)
        return self._json.array(start, possible, item, more, most - len(possible))

    def _counts(self, schema: Schema, what: str) -> tuple[int, int | None]:
        return count(schema, f"min{what}", 0) or 0, count(schema, f"max{what}", None)

    def _string(self, schema: Schema, start: int, place: Place) -> int | None:
        path = place.path
        least, most = self._counts(schema, "Length")
        source, form = schema.get("pattern"), schema.get("format")
        held = FORMATS.get(form) if isinstance(form, str) else None
        if source is None and held is None:
            return (
                None if most is not None and least > most else self._json.string(start, least, most)
            )
        others = {"minLength", "maxLength", "format"} & schema.keys()
        if source is not None and (others - {"format"} or held is not None):
            name = next(iter(sorted(others)))
            raise GrammarRefused(joined(path, name), "is not held beside pattern")
        if held is not None:
            if others - {"format"}:
                raise GrammarRefused(
                    joined(path, "format"), "is not held beside minLength, maxLength"
                )
            return self._patterned(start, f"^{held}$", joined(path, "format"))
        return self._patterned(start, source, joined(path, "pattern"))

    def _patterned(self, start: int, source: Any, path: str) -> int:
        if not isinstance(source, str):
            raise GrammarRefused(path, f"{short(source)} is no expression")
        return self._json.quoted(start, lambda at: expressions.pattern(self._nfa, at, source, path))

    def _number(self, kind: str, schema: Schema, start: int, place: Place) -> int | None:
        path = place.path
        if schema.get("multipleOf", 1) != 1 or ("multipleOf" in schema and kind == "number"):
            raise GrammarRefused(joined(path, "multipleOf"), "is not supported")
        digits = MOST_DIGITS if kind == "number" else _MOST_WHOLE_DIGITS
        low, above = _bound(schema, "minimum", "exclusiveMinimum", path, digits, max)
        high, below = _bound(schema, "maximum", "exclusiveMaximum", path, digits, min)
        if low is None and high is None:
            return self._json.integer(start) if kind == "integer" else self._json.number(start)
        if kind == "number":
            return number_between(self._nfa, start, low, high, above=above, below=below)
        return integer_between(
            self._nfa,
            start,
            None if low is None else least_whole(low, above=above),
            None if high is None else most_whole(high, below=below),
        )


def _bound(
    schema: Schema,
    name: str,
    exclusive: str,
    path: str,
    most_digits: int,
    stricter: Callable[[Decimal, Decimal], Decimal],
) -> tuple[Decimal | None, bool]:
    """(the bound, whether it is itself excluded)."""
    given = {key: schema[key] for key in (name, exclusive) if key in schema}
    if not given:
        return None, False
    bounds = {key: Decimal(str(value)) for key, value in given.items()}
    for key, bound in bounds.items():
        decimals = 0 if bound == int(bound) else -int(bound.as_tuple().exponent)
        if len(str(abs(int(bound)))) + decimals > most_digits:
            raise GrammarRefused(
                joined(path, key), f"{short(given[key])} has more than {most_digits} digits"
            )
    if len(bounds) == 2:
        bound = stricter(bounds[name], bounds[exclusive])
        return bound, bound == bounds[exclusive]
    [(key, bound)] = bounds.items()
    return bound, key == exclusive
