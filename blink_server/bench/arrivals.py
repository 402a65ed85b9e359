"""When requests arrive, in seconds after the start."""

from __future__ import annotations

import numpy as np


def poisson(rate: float, seconds: float, random: np.random.Generator) -> list[float]:
    """Arrivals of a Poisson process of `rate` requests a second, in [0, seconds)."""
    times: list[float] = []
    batch = int(rate * seconds) + 16
    last = 0.0
    while last < seconds:
        gaps = random.exponential(1 / rate, batch)
        more = last + np.cumsum(gaps)
        last = float(more[-1])
        times += more[more < seconds].tolist()
    return times


def constant(rate: float, seconds: float) -> list[float]:
    """An arrival every 1 / rate seconds, the first at 0."""
    count = int(np.ceil(rate * seconds - 1e-9))
    return [number / rate for number in range(count)]
