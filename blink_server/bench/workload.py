"""Who arrives when and how long it is: all of a measurement that is known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from blink_server.bench import arrivals
from blink_server.bench.lengths import Lengths
from blink_server.bench.trace import TraceRow


@dataclass(frozen=True, slots=True)
class Size:
    """Tokens of a prompt and of its answer."""

    input_tokens: int
    output_tokens: int


DrawSizes = Callable[[int, np.random.Generator], list[Size]]
"""`draw(count, random)`: that many sizes."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One measurement's requests.

    Open loop: request i arrives `times[i]` seconds after the start whatever became of the others,
    and arrivals end after `seconds`. Closed loop (`concurrency` set, `times` empty): that many
    clients, each of which sends the next request when its last one has ended.
    """

    sizes: Sequence[Size]
    times: Sequence[float] = ()
    seconds: float | None = None
    concurrency: int | None = None


def open_loop(
    process: str, rate: float, seconds: float, draw: DrawSizes, seed: Sequence[int]
) -> Workload:
    """Arrivals of a `process`, "poisson" or "constant", at `rate` requests a second.

    Arrivals and lengths come from streams of their own: other lengths leave arrivals as they are.
    """
    for_times, for_sizes = _streams(seed)
    if process == "poisson":
        times = arrivals.poisson(rate, seconds, for_times)
    else:
        times = arrivals.constant(rate, seconds)
    return Workload(draw(len(times), for_sizes), times, seconds)


def closed_loop(concurrency: int, requests: int, draw: DrawSizes, seed: Sequence[int]) -> Workload:
    """`requests` requests, `concurrency` at a time."""
    _, for_sizes = _streams(seed)
    return Workload(draw(requests, for_sizes), concurrency=concurrency)


def replayed(rows: Sequence[TraceRow], speed: float) -> Workload:
    """A trace as it was recorded, or `speed` times as fast.

    It lasts to its last arrival and one mean gap more, so that its rate is that of the trace.
    """
    times = [row.arrival / speed for row in rows]
    gap = times[-1] / (len(times) - 1) if len(times) > 1 and times[-1] > 0 else 1.0
    sizes = [Size(row.input_tokens, row.output_tokens) for row in rows]
    return Workload(sizes, times, times[-1] + gap)


def independent(inputs: Lengths, outputs: Lengths) -> DrawSizes:
    """Lengths of prompts and of answers that have nothing to do with each other."""

    def draw(count: int, random: np.random.Generator) -> list[Size]:
        for_inputs, for_outputs = random.spawn(2)
        pairs = zip(inputs.draw(count, for_inputs), outputs.draw(count, for_outputs), strict=True)
        return [Size(prompt, answer) for prompt, answer in pairs]

    return draw


def recorded(rows: Sequence[TraceRow]) -> DrawSizes:
    """The lengths of recorded requests, drawn alike with replacement."""

    def draw(count: int, random: np.random.Generator) -> list[Size]:
        chosen = (rows[place] for place in random.integers(len(rows), size=count))
        return [Size(row.input_tokens, row.output_tokens) for row in chosen]

    return draw


def _streams(seed: Sequence[int]) -> list[np.random.Generator]:
    return [np.random.default_rng(one) for one in np.random.SeedSequence(seed).spawn(2)]
