"""The host sampler under a grammar: whatever the logits, texts are those of the schema."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from blink_persistent import _native
from blink_persistent.testing.noise_engine import noise
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.testing.byte_tokens import VOCABULARY, byte_tokens, grammar_of, text_of
from blink_server.testing.random_schemas import SCHEMAS, rooted, small_enough
from blink_server.text.grammar.constraint import Spec

EOS = VOCABULARY
SIZE = VOCABULARY + 1
TOKENS = byte_tokens()
TRIE = _native.TokenTrie(TOKENS.data, np.append(TOKENS.offsets, TOKENS.offsets[-1]))
SAMPLER = _native.HostSampler(ScriptedShape(vocabulary_size=SIZE, eos_token_id=EOS).host_engine())
PLAIN = {
    **{"prompt": [], "bias": [], "stop": [], "top_p": 1.0, "top_k": 0, "min_p": 0.0},
    **{"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    **{"logprobs": 0, "flags": 0, "seed": 0, "temperature": 0.0},
}
Table = npt.NDArray[np.int32]


def table_of(spec: Spec, **limits: Any) -> Table:
    grammar = grammar_of(spec, TOKENS)
    bounds = {"most_words": 1 << 24, "seconds": 60.0, **limits}
    return _native.build_grammar(TRIE, grammar.class_of, grammar.next, grammar.accepting, **bounds)


def sample(table: Table, output: list[int], logits: Any, **fields: Any) -> Any:
    return SAMPLER.sample_one(logits, output=output, grammar=table, **{**PLAIN, **fields})


def generate(table: Table, longest: int, **fields: Any) -> tuple[bytes, bool]:
    """The text that noise gives, and whether it has ended."""
    output: list[int] = []
    while len(output) < longest:
        logits = noise(len(output), fields.get("seed", 0), SIZE)
        # Ends are as probable as in a model that has something to say.
        logits[[EOS, *map(ord, '"}],')]] += 3
        token, _, _ = sample(table, output, logits, **fields)
        if token == EOS:
            return text_of(output), True
        assert 0 <= token < EOS
        output.append(token)
    return text_of(output), False


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS, seed=st.integers(0, 2**31), temperature=st.sampled_from([0.0, 1.0, 2.0]))
def test_all_that_ends_fulfils_the_schema(schema: Any, seed: int, temperature: float) -> None:
    root = rooted(schema)
    with small_enough():
        table = table_of({"type": "json_schema", "schema": root})
    text, ended = generate(table, 120, seed=seed, temperature=temperature)
    if ended:
        Draft202012Validator(root).validate(json.loads(text))


@pytest.mark.parametrize("flags", [0, _native.SUPPRESS_END])
def test_min_tokens_gives_way_where_nothing_else_may_follow(flags: int) -> None:
    table = table_of({"type": "choice", "texts": ["a", "ab"]})
    logits = np.zeros(SIZE, np.float32)
    logits[EOS] = 5
    expected = EOS if flags == 0 else ord("b")
    assert sample(table, [ord("a")], logits, flags=flags)[0] == expected
    assert sample(table, list(b"ab"), logits, flags=flags)[0] == EOS


def test_log_probabilities_are_those_of_what_is_allowed() -> None:
    table = table_of({"type": "choice", "texts": ["a", "b"]})
    logits = np.zeros(SIZE, np.float32)
    logits[ord("x")] = 9
    token, logprob, top = sample(table, [], logits, logprobs=4)
    assert token == ord("a")
    assert logprob == pytest.approx(math.log(0.5))
    assert [entry[0] for entry in top[:2]] == [ord("a"), ord("b")]
    assert top[2][1] == -math.inf


def test_bias_and_penalties_act_among_what_is_allowed() -> None:
    table = table_of({"type": "regex", "source": "[ab]{2}"})
    logits = np.zeros(SIZE, np.float32)
    assert sample(table, [], logits, bias=[(ord("b"), 1.0)])[0] == ord("b")
    assert sample(table, [ord("a")], logits, presence_penalty=1.0)[0] == ord("b")


def test_broken_tables_end_the_request_and_nothing_else() -> None:
    table = table_of({"type": "json_object"})
    chance = np.random.default_rng(7)
    logits = np.zeros(SIZE, np.float32)
    tokens = set()
    for cut, _ in itertools.product(range(0, 60, 7), range(4)):
        broken = table.copy()
        broken[chance.integers(len(table), size=40)] = chance.integers(-(2**31), 2**31, 40)
        tokens.add(sample(broken[: len(table) - cut], list(b'{"a":'), logits)[0])
    assert tokens <= {-1, *range(SIZE)}
    assert -1 in tokens  # a table that is cut short allows nothing


def test_limits_of_tables_are_told_apart() -> None:
    spec: Spec = {"type": "json_object"}
    with pytest.raises(_native.GrammarTooLarge):
        table_of(spec, most_words=1000)
    with pytest.raises(_native.GrammarTooSlow):
        table_of(spec, seconds=0.0)
    nothing = _native.TokenTrie(np.zeros(0, np.uint8), np.zeros(SIZE + 1, np.uint64))
    grammar = grammar_of(spec, TOKENS)
    with pytest.raises(_native.GrammarUnwritable):
        _native.build_grammar(
            *(nothing, grammar.class_of, grammar.next, grammar.accepting),
            most_words=1 << 20,
            seconds=60.0,
        )


def test_tokens_that_lead_nowhere_are_left_out() -> None:
    """The vocabulary has no `z`: nothing may begin that only a z could end."""
    pieces = [b"a", b"b", b"az", b"bz"[:1] + b"a"]
    offsets = np.cumsum([0, *map(len, pieces)]).astype(np.uint64)
    trie = _native.TokenTrie(np.frombuffer(b"".join(pieces), np.uint8), offsets)
    grammar = grammar_of({"type": "choice", "texts": ["bz", "aza", "a"]}, TOKENS)
    table = _native.build_grammar(
        *(trie, grammar.class_of, grammar.next, grammar.accepting), most_words=999, seconds=60.0
    )
    sampler = _native.HostSampler(ScriptedShape(vocabulary_size=4, eos_token_id=3).host_engine())
    for best, expected in ((1, 0), (2, 2), (0, 0)):
        logits = np.zeros(4, np.float32)
        logits[best] = 5
        assert sampler.sample_one(logits, output=[], grammar=table, **PLAIN)[0] == expected
