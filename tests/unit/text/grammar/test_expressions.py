"""Expressions by the library, taken into an automaton, match what Python's `re` matches."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blink_server.text.grammar.constraint import any_of, repeat, sequence, text
from blink_server.text.grammar.refusal import GrammarRefused
from blink_server.text.grammar.specs import compile_spec

EXPRESSIONS = [
    r"a+b?",
    r"^ab$",
    r"^a|b$",
    r"(a|b)\|c",
    r"[a|b^]+",
    r"\d{2}",
    r"[\d-]+",
    r"\D\S",
    r"a\$",
    r"\\",
    r"é.",
    r"(?:a|)b",
    r"xyz|x",
]
ANCHORED = (r"^ab$", r"^a|b$")  # Python's $ also matches before a line feed
TEXTS = st.text(st.sampled_from('abcxyz|^$12-\\"é字\n '), max_size=5)


@pytest.mark.parametrize("source", EXPRESSIONS)
def test_whole_texts_are_matched(source: str) -> None:
    automaton = compile_spec({"type": "regex", "source": source})
    # Every alternative is anchored, as a server's expression for a whole answer is.
    expected = re.compile(source.replace("^a|b$", "a|b"), re.A)

    @settings(deadline=None)
    @given(TEXTS)
    def compare(candidate: str) -> None:
        matched = expected.fullmatch(candidate) is not None
        assert automaton.accepts(candidate.encode()) == matched

    compare()


@pytest.mark.parametrize("source", EXPRESSIONS)
def test_patterns_are_found_anywhere_in_the_value_of_a_string(source: str) -> None:
    automaton = compile_spec(
        {"type": "json_schema", "schema": {"type": "string", "pattern": source}}
    )
    expected = re.compile(source.removesuffix("$") + r"\Z" if source in ANCHORED else source, re.A)

    @settings(deadline=None)
    @given(TEXTS)
    def compare(value: str) -> None:
        written = json.dumps(value, ensure_ascii=False).encode()
        assert automaton.accepts(written) == (expected.search(value) is not None)

    compare()


@settings(deadline=None)
@given(st.text(st.sampled_from("<|cal>x字"), max_size=12))
def test_content_ends_where_a_marker_would_begin(content: str) -> None:
    automaton = compile_spec({"type": "not_containing", "text": "<|call|>"})
    assert automaton.accepts(content.encode()) == ("<|call|>" not in content)


def test_specs_are_put_together() -> None:
    spec = sequence(text("a"), repeat(any_of(text("b"), text("cc")), 1, 2), repeat(text("d")))
    automaton = compile_spec(spec)
    for accepted in (b"ab", b"acc", b"abcc", b"abbddd"):
        assert automaton.accepts(accepted)
    for refused in (b"a", b"ac", b"abbb", b"abd "):
        assert not automaton.accepts(refused)


@pytest.mark.parametrize("source", [r"[a-z][a-z0-9_]{0,62}", r"[^,]{1,60}", r".{0,60}"])
def test_bounded_repeats_take_states_in_proportion(source: str) -> None:
    automaton = compile_spec({"type": "regex", "source": source})
    assert len(automaton.next) < 1000
    for candidate in ("a" * 60, "a" * 70, "a0", ""):
        matched = re.fullmatch(source, candidate) is not None
        assert automaton.accepts(candidate.encode()) == matched


@pytest.mark.parametrize(
    ("source", "named"),
    [(r"(a)\1", r"\1"), ("a(?!b)", "(?!"), ("(?<=a)b", "(?<="), ("x(?=a)", "(?=")],
)
def test_what_rust_has_not_is_refused_by_name(source: str, named: str) -> None:
    with pytest.raises(GrammarRefused) as refused:
        compile_spec({"type": "regex", "source": source, "path": "guided_regex"})
    assert str(refused.value) == f"guided_regex: has {named}, which is not supported"


@pytest.mark.parametrize("source", [r"\(?=b", "[(?=]", r"\\1", "(?P<n>a)"])
def test_what_only_looks_like_it_is_not(source: str) -> None:
    assert compile_spec({"type": "regex", "source": source}).accepting.any()


def test_an_expression_of_nothing_is_refused_in_its_own_words() -> None:
    with pytest.raises(GrammarRefused, match=r"^guided_regex: matches no text$"):
        compile_spec({"type": "regex", "source": r"[^\s\S]", "path": "guided_regex"})
