"""Where throughput stops growing with the offered load, by the paper's two-segment fit (6.2).

Throughput grows in proportion to the load until it saturates, then stays: min(slope * load,
plateau). The saturation point is where both meet, the serviceable load the largest measured load
up to there, and the operating range all measured loads up to that one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

_SAME_LOAD = 1.001  # a saturation point this near to a load is that load
_PLATEAU_REACH = 1.1  # less than the line by this at the highest load: else it may be chance


@dataclass(frozen=True, slots=True)
class Saturation:
    """`plateau` and `saturation_point` are None where the sweep did not reach saturation.

    Loads and throughputs are requests a second; `slope` has no unit; `residual` is the root of
    the fit's mean squared error.
    """

    slope: float
    plateau: float | None
    saturation_point: float | None
    serviceable_load: float
    throughput_at_serviceable: float
    residual: float

    def operating_range(self, loads: Iterable[float]) -> list[float]:
        """The measured loads that can be served."""
        return [load for load in loads if load <= self.serviceable_load]


def fit(loads: Sequence[float], throughputs: Sequence[float]) -> Saturation | None:
    """Least squares over every split of the loads; None for fewer than two loads.

    Each load is to stand there once: repeated runs are averaged before, as in the paper.
    """
    order = np.argsort(loads)
    x, y = np.asarray(loads, float)[order], np.asarray(throughputs, float)[order]
    if len(x) < 2:
        return None
    candidates = [(_slope(x, y), math.inf)]
    for split in range(1, len(x)):
        slope, plateau = _slope(x[:split], y[:split]), float(y[split:].mean())
        if slope * x[-1] > plateau * _PLATEAU_REACH:
            candidates.append((slope, plateau))
    error, slope, plateau = min(
        (float(np.mean((np.minimum(k * x, top) - y) ** 2)), k, top) for k, top in candidates
    )
    point = plateau / slope if slope > 0 and plateau < math.inf else None
    # Below the first load nothing was measured: the least that was is then the answer.
    place = len(x) - 1 if point is None else max(int(np.searchsorted(x, point * _SAME_LOAD)) - 1, 0)
    return Saturation(
        slope=slope,
        plateau=None if point is None else plateau,
        saturation_point=point,
        serviceable_load=float(x[place]),
        throughput_at_serviceable=float(y[place]),
        residual=math.sqrt(error),
    )


def geometric_mean(values: Iterable[float]) -> float | None:
    """Of positive values; None of none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    return float(x @ y / (x @ x))
