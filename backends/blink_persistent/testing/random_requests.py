"""Random requests to the scripted engine, valid and not, for tests that need many."""

from __future__ import annotations

import random

from blink_persistent.testing.scripted_request import ScriptedRequest

# Changes of a record that make it invalid for the default limits of `ScriptedShape`.
INVALID: list[dict[str, int | float]] = [
    {"prompt_length": 0},
    {"prompt_length": 96},
    {"prompt_offset": 0xFFFFFFFF},
    {"output_offset": 0xFFFFFFFF},
    {"logprobs_offset": 0xFFFFFFFF, "logprobs": 1},
    {"stop_count": 0xFFFFFFFF},
    {"bias_count": 0x80000000},
    {"grammar_words": 0xFFFFFFFF},
    {"max_tokens": 0},
    {"max_tokens": 97},
    {"logprobs": 22},
    {"priority": 4},
    {"temperature": float("nan")},
    {"temperature": float("inf")},
    {"temperature": -1.0},
    {"top_p": 0.0},
    {"min_p": float("nan")},
    {"repetition_penalty": 0.0},
    {"presence_penalty": float("inf")},
    {"frequency_penalty": float("nan")},
]


def any_request(chance: random.Random) -> ScriptedRequest:
    """One request for a vocabulary of 101 and a context of 96 tokens; about one in ten is one
    that must be refused."""
    prompt = [chance.randrange(101) for _ in range(chance.choice([1, 4, 9, 20, 40, 95]))]
    prompt = prompt[: chance.randint(1, len(prompt))]
    if chance.random() < 0.05:
        prompt[chance.randrange(len(prompt))] = chance.choice([-1, 101])
    return ScriptedRequest(
        prompt=tuple(prompt),
        max_tokens=chance.randint(1, 40),
        min_tokens=chance.choice([0, 0, 5, 50]),
        stop=chance.choice([(), (), (7, 60), (2,)]),
        ignore_eos=chance.random() < 0.5,
        priority=chance.choice([0, 1, 1, 1, 3]),
        logprobs=chance.choice([0, 1, 3]),
        overrides=chance.choice(INVALID) if chance.random() < 0.05 else {},
    )
