from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink_server.bench.saturation import fit, geometric_mean

PAPERS_LOADS = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32]  # 13 offered loads from 1 to 32


def throughputs(loads: list[float], slope: float, plateau: float) -> list[float]:
    return [min(slope * load, plateau) for load in loads]


@given(
    slope=st.floats(0.5, 1.0),
    knee=st.floats(1.5, 22.0),
    scale=st.floats(0.01, 100.0),
    random=st.randoms(),
)
def test_what_was_put_in_comes_out(slope: float, knee: float, scale: float, random: object) -> None:
    loads = [scale * load for load in PAPERS_LOADS]
    random.shuffle(loads)  # type: ignore[attr-defined]
    found = fit(loads, throughputs(loads, slope, slope * knee * scale))
    assert found is not None
    assert found.slope == pytest.approx(slope)
    assert found.plateau == pytest.approx(slope * knee * scale)
    assert found.saturation_point == pytest.approx(knee * scale)
    assert found.residual == pytest.approx(0, abs=1e-6 * scale)
    below = [load for load in loads if load <= knee * scale * 1.001]
    assert found.serviceable_load == max(below)
    assert sorted(found.operating_range(loads)) == sorted(below)
    assert found.throughput_at_serviceable == pytest.approx(
        min(slope * max(below), slope * knee * scale)
    )


@pytest.mark.parametrize(
    ("slope", "plateau", "serviceable"),
    [(11.87 / 12, 11.96, 12), (6.72 / 7, 6.86, 7), (2.0 / 2, 2.13, 2)],
    ids=["Llama-3 8B", "Phi-4 15B", "Qwen-3 32B"],
)
def test_the_papers_operating_ranges(slope: float, plateau: float, serviceable: float) -> None:
    """Section 6.2: throughput at saturation and plateau, to the range that it gives for them."""
    found = fit(PAPERS_LOADS, throughputs([*map(float, PAPERS_LOADS)], slope, plateau))
    assert found is not None
    assert found.serviceable_load == serviceable


@given(seed=st.integers(0, 2**32 - 1))
def test_noise_moves_the_fit_a_little(seed: int) -> None:
    random = np.random.default_rng(seed)
    noisy = np.array(throughputs([*map(float, PAPERS_LOADS)], 0.98, 9.0))
    noisy *= random.uniform(0.98, 1.02, len(noisy))
    found = fit(PAPERS_LOADS, noisy.tolist())
    assert found is not None
    assert found.plateau == pytest.approx(9.0, rel=0.03)
    assert found.saturation_point == pytest.approx(9.0 / 0.98, rel=0.05)
    assert found.serviceable_load == 8


@given(slope=st.floats(0.9, 1.0), seed=st.integers(0, 2**32 - 1))
def test_a_line_alone_has_no_plateau(slope: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    achieved = [slope * load * random.uniform(0.99, 1.01) for load in PAPERS_LOADS]
    found = fit(PAPERS_LOADS, achieved)
    assert found is not None
    assert (found.plateau, found.saturation_point) == (None, None)
    assert found.serviceable_load == 32
    assert found.throughput_at_serviceable == achieved[-1]


def test_a_little_less_at_the_highest_load_is_no_plateau_yet() -> None:
    found = fit([1, 2, 4, 8], [1, 2, 4, 7.5])
    assert found is not None
    assert found.plateau is None


def test_much_less_there_is_one() -> None:
    found = fit([1, 2, 4, 8], [1, 2, 4, 5])
    assert found is not None
    assert (found.plateau, found.saturation_point, found.serviceable_load) == (5, 5, 4)


def test_loads_that_are_all_beyond_saturation_leave_the_least_of_them() -> None:
    found = fit([8, 16, 32], [4, 4, 4])
    assert found is not None
    assert found.serviceable_load == 8
    assert found.plateau == pytest.approx(4)


@pytest.mark.parametrize("loads", [[], [3.0]])
def test_fewer_than_two_loads_have_no_fit(loads: list[float]) -> None:
    assert fit(loads, loads) is None


@given(st.lists(st.floats(1e-3, 1e6), min_size=1))
def test_geometric_mean(values: list[float]) -> None:
    mean = geometric_mean(values)
    assert mean is not None
    assert min(values) * (1 - 1e-9) <= mean <= max(values) * (1 + 1e-9)
    doubled = geometric_mean([2 * value for value in values])
    assert doubled == pytest.approx(2 * mean)


def test_geometric_mean_of_known_values() -> None:
    assert geometric_mean([1, 100]) == pytest.approx(10)
    assert geometric_mean([]) is None
    assert math.isclose(geometric_mean([7.0]) or 0, 7.0)
