"""Llama 3's way to a longer context: rotary frequencies divided, the slow ones more."""

from __future__ import annotations

import numpy as np


def llama3_divisors(
    theta: float,
    head_dim: int,
    *,
    factor: float,
    low_frequency_factor: float,
    high_frequency_factor: float,
    original_context: int,
) -> tuple[float, ...]:
    """What each of the head_dim / 2 frequencies is divided by.

    Pairs that turn more than `high_frequency_factor` times within the original context are left
    alone, those that turn less than `low_frequency_factor` times are slowed by `factor`; between
    the two, which differ, the frequencies are blended linearly in the number of turns.
    """
    frequency = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    turns = original_context * frequency / (2 * np.pi)
    blend = (turns - low_frequency_factor) / (high_frequency_factor - low_frequency_factor)
    kept = np.clip(blend, 0.0, 1.0)
    return tuple((1.0 / (kept + (1.0 - kept) / factor)).tolist())
