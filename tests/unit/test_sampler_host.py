"""The host sampler against a plain float64 reference."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import blink_persistent
from blink_persistent import _native
from blink_persistent.testing.scripted_shape import ScriptedShape

VOCABULARY = 1003  # neither a power of two nor a multiple of any vector
EOS = 2
Logits = npt.NDArray[np.float32]
Exact = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A sampling row; the defaults are a plain greedy one."""

    prompt: tuple[int, ...] = (5, 6)
    output: tuple[int, ...] = ()
    bias: tuple[tuple[int, float], ...] = ()
    stop: tuple[int, ...] = ()
    seed: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int = 0
    flags: int = 0

    def sample(self, logits: Logits) -> tuple[int, float, list[tuple[int, float]]]:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        token, logprob, top = SAMPLER.sample_one(logits, **fields)
        return token, logprob, top

    def token(self, logits: Logits) -> int:
        return self.sample(logits)[0]


SAMPLER = _native.HostSampler(ScriptedShape(vocabulary_size=VOCABULARY).host_engine())


def adjusted(case: Case, logits: Logits) -> Exact:
    """Bias, penalties, suppression, as sampler_host.h orders them."""
    result = logits.astype(np.float64)
    for token, value in case.bias:
        result[token] += value
    for token in set(case.output):
        count = case.output.count(token)
        result[token] -= case.presence_penalty + case.frequency_penalty * count
    for token in set(case.prompt + case.output):
        scale = case.repetition_penalty
        result[token] = result[token] / scale if result[token] > 0 else result[token] * scale
    if case.flags & _native.SUPPRESS_END:
        end = case.stop if case.flags & _native.KEEP_EOS else (*case.stop, EOS)
        result[list(end)] = -np.inf
    return result


def kept(case: Case, exact: Exact) -> tuple[npt.NDArray[np.intp], Exact]:
    """Ids that may be drawn, ascending, and their weights."""
    weights = np.exp((exact - exact.max()) / case.temperature)
    order = np.lexsort((np.arange(len(weights)), -weights))
    order = order[weights[order] >= case.min_p]
    if case.top_k > 0:
        order = order[: case.top_k]
    mass = np.cumsum(weights[order])
    enough = int(np.searchsorted(mass, case.top_p * mass[-1], side="left")) + 1
    ids = np.sort(order[:enough])
    return ids, weights[ids]


def expected_token(case: Case, logits: Logits) -> int | None:
    """The reference's token; None where float32 may decide otherwise."""
    exact = adjusted(case, logits)
    if case.temperature == 0.0:
        return int(exact.argmax())
    ids, weights = kept(case, exact)
    below = np.cumsum(weights) / weights.sum()
    position = len(case.prompt) + len(case.output)
    uniform = _native.uniform_at(case.seed, position)
    if np.abs(below[:-1] - uniform).min(initial=1.0) < 1e-6:
        return None
    return int(ids[np.searchsorted(below, uniform, side="right")])


def random_case(chance: random.Random) -> Case:
    def tokens(longest: int) -> tuple[int, ...]:
        return tuple(chance.randrange(VOCABULARY) for _ in range(chance.randint(0, longest)))

    return Case(
        prompt=tokens(20),
        output=tokens(20) * chance.randint(1, 2),
        bias=tuple((t, chance.uniform(-9, 9)) for t in set(tokens(4))),
        stop=tokens(3),
        seed=chance.getrandbits(64),
        temperature=chance.choice([0.0, 0.3, 0.7, 1.0, 1.0, 2.5]),
        top_p=chance.choice([1.0, 0.1, 0.5, 0.9, 0.999]),
        top_k=chance.choice([0, -1, 1, 3, 40, VOCABULARY, VOCABULARY + 1]),
        min_p=chance.choice([0.0, 0.0, 0.02, 0.3]),
        repetition_penalty=chance.choice([1.0, 1.0, 1.3, 0.8]),
        presence_penalty=chance.choice([0.0, 0.0, 1.5, -1.0]),
        frequency_penalty=chance.choice([0.0, 0.0, 0.7]),
        flags=chance.choice([0, _native.SUPPRESS_END, _native.SUPPRESS_END | _native.KEEP_EOS]),
    )


@pytest.mark.parametrize("spread", [0.3, 3.0, 12.0])
def test_every_combination_chooses_the_references_token(spread: float) -> None:
    chance, draws = random.Random(int(spread * 10)), np.random.default_rng(int(spread * 10))
    close = 0
    for _ in range(300):
        case = random_case(chance)
        logits = draws.normal(scale=spread, size=VOCABULARY).astype(np.float32)
        expected = expected_token(case, logits)
        close += expected is None
        assert expected is None or case.token(logits) == expected, case
    assert close < 15


def test_greedy_takes_the_first_of_the_best() -> None:
    logits = np.zeros(VOCABULARY, np.float32)
    logits[[700, 41, 900]] = 3.5
    assert Case().token(logits) == 41
    assert Case(temperature=1.0, top_k=1).token(logits) == 41
    assert {Case(temperature=1.0, top_k=2, seed=s).token(logits) for s in range(50)} == {41, 700}


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    logits = np.random.default_rng(1).normal(size=VOCABULARY).astype(np.float32)
    first = [Case(seed=s, temperature=1.0).token(logits) for s in range(100)]
    again = [Case((9,), (8,), seed=s, temperature=1.0).token(logits) for s in reversed(range(100))]
    assert first == again[::-1]  # two tokens before it, whatever they are and whatever came before
    later = [Case(output=(5,), seed=s, temperature=1.0).token(logits) for s in range(100)]
    assert sum(a != b for a, b in zip(first, later, strict=True)) > 90


@pytest.mark.parametrize(
    "case",
    [Case(temperature=1.0), Case(temperature=0.5, top_p=0.9), Case(temperature=2.0, top_k=5)],
)
def test_draws_follow_the_distribution(case: Case) -> None:
    """Chi-square over fixed seeds: 1e-9 of all seed ranges would exceed the bound."""
    logits = np.full(VOCABULARY, -np.inf, np.float32)
    logits[10:90:10] = [2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, 1.7]
    ids, weights = kept(case, logits.astype(np.float64))
    ids, weights = ids[weights > 0], weights[weights > 0]
    draws = 20_000
    tokens = [
        Case(seed=s, temperature=case.temperature, top_p=case.top_p, top_k=case.top_k).token(logits)
        for s in range(draws)
    ]
    counts = np.array([tokens.count(token) for token in ids])
    assert counts.sum() == draws
    expected = draws * weights / weights.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 55.0  # 7 degrees of freedom: p = 1.5e-9


def test_end_tokens_are_suppressed_until_min_tokens() -> None:
    logits = np.arange(VOCABULARY, dtype=np.float32)
    logits[[EOS, 7]] = [5000, 4000]
    assert Case().token(logits) == EOS
    assert Case(stop=(7,), flags=_native.SUPPRESS_END).token(logits) == VOCABULARY - 1
    both = _native.SUPPRESS_END | _native.KEEP_EOS
    assert Case(stop=(7,), flags=both).token(logits) == EOS
    assert Case(stop=(EOS,), flags=both).token(logits) == 7


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top", [0, 5, 20])
def test_log_probabilities_are_those_before_temperature(temperature: float, top: int) -> None:
    logits = np.random.default_rng(3).normal(scale=4, size=VOCABULARY).astype(np.float32)
    case = Case(
        output=(9, 9, 30),
        temperature=temperature,
        presence_penalty=1.0,
        logprobs=top + 1,
        top_p=0.8,
    )
    token, logprob, entries = case.sample(logits)
    exact = adjusted(case, logits)
    exact -= exact.max() + np.log(np.exp(exact - exact.max()).sum())
    assert logprob == pytest.approx(exact[token], abs=1e-5)
    order = np.lexsort((np.arange(VOCABULARY), -exact))[:top]
    assert [entry for entry, _ in entries] == order.tolist()
    assert [value for _, value in entries] == pytest.approx(exact[order].tolist(), abs=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("at", [0, 500, VOCABULARY - 1])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_give_no_token(bad: float, at: int, temperature: float) -> None:
    logits = np.zeros(VOCABULARY, np.float32)
    logits[at] = bad
    assert Case(temperature=temperature).token(logits) == -1


@pytest.mark.parametrize("seed", range(20))
def test_a_row_after_one_of_no_numbers_is_sampled_as_before_it(seed: int) -> None:
    chance = random.Random(seed)
    good, bad = random_case(chance), random_case(chance)
    logits = np.random.default_rng(seed).normal(scale=4, size=VOCABULARY).astype(np.float32)
    before = good.sample(logits)
    token, _, _ = bad.sample(np.full(VOCABULARY, np.nan, np.float32))
    assert token == -1
    assert good.sample(logits) == before


def test_tokens_without_probability_are_never_drawn() -> None:
    logits = np.full(VOCABULARY, -np.inf, np.float32)
    assert Case(temperature=1.0).token(logits) == -1
    logits[[3, 999]] = 1.0
    for extra in ({}, {"top_k": 50}, {"top_p": 0.99}, {"min_p": 0.1}):
        drawn = {Case(seed=s, temperature=5.0, **extra).token(logits) for s in range(64)}
        assert drawn == {3, 999}


@pytest.mark.parametrize("temperature", [1e-45, 1e-39, 1e-30, 1e-3])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = np.linspace(-5, 5, VOCABULARY, dtype=np.float32)
    logits[321] = 6.0
    assert {Case(seed=s, temperature=temperature).token(logits) for s in range(20)} == {321}
    logits[700] = 6.0  # an equal draws its share
    assert {Case(seed=s, temperature=temperature).token(logits) for s in range(20)} == {321, 700}


def test_ids_outside_the_vocabulary_are_ignored() -> None:
    logits = np.linspace(0, 1, VOCABULARY, dtype=np.float32)
    case = Case(
        prompt=(-5, 1 << 30),
        output=(VOCABULARY,),
        bias=((-1, 100.0), (VOCABULARY, 100.0), (8, 50.0)),
        stop=(-1, VOCABULARY),
        repetition_penalty=2.0,
        presence_penalty=1.0,
        flags=_native.SUPPRESS_END,
    )
    assert case.token(logits) == 8


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_gcc_makes_vector_code_of_exponentials(tmp_path: Path) -> None:
    """As the native module is built; without it a row of 128,000 tokens takes 0.4 ms, not 0.05."""
    csrc = Path(blink_persistent.__path__[-1]) / "csrc"
    listing = (Path(__file__).parents[2] / "CMakeLists.txt").read_text()
    found = re.search(r"target_compile_options\(_native PRIVATE (.*)\)", listing)
    assert found is not None
    source = tmp_path / "sampler.cc"
    source.write_text(
        '#include "blink/sampler_host.h"\n'
        "double use(const float* logits, float* weights) {\n"
        "    return blink::exponentials(logits, 128000, 9.0f, 1.0f, weights);\n"
        "}\n"
    )
    options = ["-std=c++20", f"-I{csrc / 'include'}", "-fopt-info-vec-optimized", "-c"]
    done = subprocess.run(
        ["g++", *options, *found[1].split(), str(source), "-o", str(tmp_path / "sampler.o")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = (csrc / "include" / "blink" / "sampler_host.h").read_text().splitlines()
    (number,) = (i for i, line in enumerate(lines, 1) if "= exp_negative(" in line)
    told = [line for line in done.stderr.splitlines() if f"sampler_host.h:{number}:" in line]
    assert any("loop vectorized" in line for line in told), done.stderr
