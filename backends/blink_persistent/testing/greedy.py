"""Whether what a model on a GPU generated is what its float32 reference would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blink_server.importers.checkpoint import Architecture
from blink_server.testing.llama_reference import forward


def check_greedy(
    architecture: Architecture,
    plain: Any,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    same: float = 0.9,
) -> None:
    """Each token is the reference's best, or so near it that bfloat16 may differ.

    `plain` is a checkpoint's tensors in float32. More than a share of `same` are the best ones.
    Raises AssertionError.
    """
    logits = forward(architecture, plain, (*prompt, *output)).logits[len(prompt) - 1 : -1]
    chosen = logits[np.arange(len(output)), list(output)]
    margin = logits.max(axis=1) - chosen
    spread = logits.std()
    assert (margin < 0.1 * spread).all(), f"margins {margin.max()} of a spread of {spread}"
    assert (margin == 0).mean() > same
