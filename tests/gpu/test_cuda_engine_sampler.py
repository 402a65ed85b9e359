"""The device's sampler chooses what the host's sampler chooses, and counts steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blink_persistent import _native
from blink_persistent.gpu.driver import Gpu
from blink_persistent.gpu.engine_buffers import EngineLimits, allocate_engine
from blink_persistent.gpu.structs import SamplingRow
from blink_persistent.graph_grid import DECODE, PREFILL, default_grid
from blink_persistent.samplers.default_cuda import DeviceSampler
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.backend import TokenBytes
from blink_server.testing.byte_tokens import grammar_of

pytestmark = pytest.mark.gpu

ROWS, VOCABULARY, TOP = 16, 20011, _native.MAX_TOP_LOGPROBS
FACTORS = ("temperature", "top_p", "min_p")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
SAMPLING_ROW = np.dtype(SamplingRow)
ACTIVE, EOS = 1, 2


class Bench:
    """A sampler over step buffers and logits of its own, of so many rows."""

    def __init__(self, gpu: Gpu, rows: int = ROWS) -> None:
        self.gpu, self.rows = gpu, rows
        limits = EngineLimits(
            context_length=64,
            vocabulary_size=VOCABULARY,
            block_size=16,
            block_count=8,
            eos_token_ids=(EOS,),
        )
        self.tables = allocate_engine(gpu, default_grid(rows, 16), limits)
        self.logits = gpu.allocate(4 * (1 + rows) * VOCABULARY)  # a prompt's, and those of rows
        self.sampler = DeviceSampler(gpu, self.tables, self.logits)

    def sample(self, rows: npt.NDArray[Any], logits: npt.NDArray[np.float32]) -> None:
        """One launch, as at the end of a decode step of len(rows) rows."""
        self.gpu.put(self.tables.buffers[DECODE].sampling, rows)
        self.gpu.put(self.logits, logits)
        self.sampler.record(DECODE, len(rows), self.gpu.io)

    def output(self, name: str, kind: type, width: int = 1) -> npt.NDArray[Any]:
        """[rows, width] of the decode phase's outputs."""
        address = getattr(self.tables.buffers[DECODE], f"output_{name}")
        return self.gpu.fetch(address, kind, self.rows * width).reshape(self.rows, width)

    def completed(self, phase: int) -> int:
        return int(self.gpu.fetch(self.tables.buffers[phase].completion, np.uint32, 1)[0])


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Gpu() as gpu:
        yield Bench(gpu)


@pytest.fixture(params=[1, ROWS, 24, 72], ids="{} rows".format)
def sized_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Its rows have 8, 8 and 4 blocks and one, on a GPU that has clusters."""
    with Gpu() as gpu:
        yield Bench(gpu, request.param)


def random_rows(rng: np.random.Generator, count: int) -> npt.NDArray[Any]:
    rows = np.zeros(count, SAMPLING_ROW)
    rows["seed"] = rng.integers(0, 1 << 60, count)
    rows["logprobs"] = rng.integers(0, TOP + 2, count)
    rows["temperature"] = rng.choice([0.0, 0.5, 1.0, 1.5], count)
    rows["top_k"] = rng.choice([0, 1, 40, 3000], count)
    rows["top_p"] = rng.choice([1.0, 0.9, 0.3], count)
    rows["min_p"] = rng.choice([0, 0.05], count)
    rows["repetition_penalty"] = rng.choice([1.0, 1.2], count)
    rows["presence_penalty"] = rng.choice([0.0, 0.5], count)
    rows["frequency_penalty"] = rng.choice([0.0, 0.3], count)
    rows["flags"] = ACTIVE
    return rows


def on_host(
    host: Any,
    row: Any,
    seen: tuple[list[int], list[int]],
    logits: npt.NDArray[np.float32],
    grammar: Any = None,
) -> tuple[int, float, list[tuple[int, float]]]:
    fields = {name: float(row[name]) for name in FACTORS + PENALTIES}
    counts = {name: int(row[name]) for name in ("seed", "top_k", "logprobs")}
    prompt, output = seen
    answer: tuple[int, float, list[tuple[int, float]]] = host.sample_one(
        logits,
        prompt=prompt,
        output=output,
        bias=[],
        stop=[],
        flags=0,
        grammar=grammar,
        **fields,
        **counts,
    )
    return answer


def test_random_rows_are_sampled_as_on_the_host(sized_bench: Bench) -> None:
    bench = sized_bench
    drawn = 320  # rows, in all
    rng = np.random.default_rng(8)
    host = _native.HostSampler(ScriptedShape(vocabulary_size=VOCABULARY).host_engine())
    seen = [rng.integers(0, VOCABULARY, count).tolist() for count in (50, 30)]
    places = [bench.gpu.place(np.array(tokens, np.int32)) for tokens in seen]
    wrong = 0
    for _ in range(-(-drawn // bench.rows)):
        rows = random_rows(rng, bench.rows)
        rows["prompt"], rows["prompt_length"] = places[0], len(seen[0])
        rows["output"], rows["output_length"] = places[1], len(seen[1])
        rows["position"] = len(seen[0]) + len(seen[1])
        logits = rng.normal(0, 2.5, (bench.rows, VOCABULARY)).astype(np.float32)
        logits[3:4, 77] = np.nan
        bench.sample(rows, logits)
        tokens = bench.output("tokens", np.int32)[:, 0]
        logprobs = bench.output("logprobs", np.float32)[:, 0]
        ids = bench.output("top_ids", np.int32, TOP)
        assert (tokens[3:4] == -1).all()
        for i, row in enumerate(rows):
            token, logprob, top = on_host(host, row, (seen[0], seen[1]), logits[i])
            wrong += token != tokens[i]
            if token != tokens[i] or row["logprobs"] == 0 or token < 0:
                continue
            assert logprobs[i] == pytest.approx(logprob, abs=1e-4)
            assert ids[i, : len(top)].tolist() == [token for token, _ in top]
    # The two sum masses differently, so that a draw on the edge of two tokens may differ.
    assert wrong <= 2, f"{wrong} of about {drawn} rows"


def test_inactive_rows_are_left_and_every_launch_is_counted_once(sized_bench: Bench) -> None:
    bench = sized_bench
    rows = np.zeros(bench.rows, SAMPLING_ROW)
    rows["repetition_penalty"] = rows["top_p"] = 1.0
    rows["flags"][::2] = ACTIVE
    logits = np.zeros((bench.rows, VOCABULARY), np.float32)
    logits[np.arange(bench.rows), np.arange(bench.rows) + 5] = 1.0
    for launches in range(1, 4):
        bench.sample(rows, logits)
        tokens = bench.output("tokens", np.int32)[:, 0]
        assert tokens[::2].tolist() == list(range(5, 5 + bench.rows, 2))
        assert not tokens[1::2].any()
        assert bench.completed(DECODE) == launches
    assert bench.completed(PREFILL) == 0


def test_a_mixed_step_ends_with_a_sampler_of_each_phase(bench: Bench) -> None:
    """The logits of its prompt come first, those of its rows behind them."""
    rows = np.zeros(ROWS, SAMPLING_ROW)
    rows["repetition_penalty"] = rows["top_p"] = 1.0
    rows["flags"] = ACTIVE
    logits = np.zeros((1 + ROWS, VOCABULARY), np.float32)
    logits[np.arange(1 + ROWS), np.arange(1 + ROWS) + 5] = 1.0
    bench.gpu.put(bench.tables.buffers[PREFILL].sampling, rows[:1])
    bench.gpu.put(bench.tables.buffers[DECODE].sampling, rows)
    bench.gpu.put(bench.logits, logits)
    bench.sampler.record(PREFILL, 1, bench.gpu.io)
    bench.sampler.record(DECODE, ROWS, bench.gpu.io, first=1)
    prompt = bench.gpu.fetch(bench.tables.buffers[PREFILL].output_tokens, np.int32, 1)
    assert [*prompt, *bench.output("tokens", np.int32)[:, 0]] == list(range(5, 6 + ROWS))
    assert (bench.completed(PREFILL), bench.completed(DECODE)) == (1, 1)


def spelled(rng: np.random.Generator) -> TokenBytes:
    """A vocabulary of single bytes, then of random texts that JSON is likely to have."""
    pieces = [bytes([byte]) for byte in range(256)]
    letters = list('{}[]",: ab1\\é')
    while len(pieces) < VOCABULARY:
        pieces.append("".join(rng.choice(letters, rng.integers(1, 6))).encode())
    pieces[EOS] = b""
    offsets = np.cumsum([0, *map(len, pieces)]).astype(np.uint64)
    return TokenBytes(np.frombuffer(b"".join(pieces), np.uint8), offsets, "random")


def test_grammars_are_held_and_gone_on_with_as_on_the_host(bench: Bench) -> None:
    rng = np.random.default_rng(9)
    host = _native.HostSampler(ScriptedShape(vocabulary_size=VOCABULARY).host_engine())
    grammar = grammar_of({"type": "json_object"}, spelled(rng))
    trie = _native.TokenTrie(grammar.tokens.data, grammar.tokens.offsets)
    table = _native.build_grammar(
        *(trie, grammar.class_of, grammar.next, grammar.accepting), most_words=1 << 24, seconds=60.0
    )
    steps = 24
    outputs = np.zeros((ROWS, steps), np.int32)
    place = bench.gpu.place(outputs)
    rows = np.zeros(ROWS, SAMPLING_ROW)
    rows["repetition_penalty"] = rows["top_p"] = 1.0
    rows["flags"], rows["logprobs"] = ACTIVE, 3
    rows["output"] = place + 4 * steps * np.arange(ROWS, dtype=np.uint64)
    rows["grammar"], rows["grammar_words"] = bench.gpu.place(table), len(table)
    for step in range(steps):
        logits = rng.normal(0, 2.5, (ROWS, VOCABULARY)).astype(np.float32)
        rows["output_length"] = rows["position"] = step
        bench.gpu.put(place, outputs)
        bench.sample(rows, logits)
        tokens = bench.output("tokens", np.int32)[:, 0]
        for i, row in enumerate(rows):
            seen = outputs[i, :step].tolist()
            expected, _, _ = on_host(host, row, ([], seen), logits[i], grammar=table)
            assert tokens[i] == expected >= 0
        address = bench.tables.buffers[DECODE].sampling
        kept = bench.gpu.fetch(address, np.uint8, rows.nbytes).view(SAMPLING_ROW)
        assert (kept["grammar_length"] == step).all()
        # Half of the rows go on from their state, the others find it anew, as a resumed request.
        rows[::2] = kept[::2]
        outputs[:, step] = tokens
    assert len({tuple(output) for output in outputs.tolist()}) > ROWS // 2
