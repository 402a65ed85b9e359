"""Whether what a model on a GPU generated is what its float32 reference would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from blink_server.importers.checkpoint import Architecture
from blink_server.testing.llama_reference import forward


def check_greedy(
    architecture: Architecture,
    plain: Any,
    answers: Iterable[tuple[Sequence[int], Sequence[int]]],
    *,
    same: float = 0.9,
) -> None:
    """Each token is the reference's best, or so near it that bfloat16 may differ.

    `plain` is a checkpoint's tensors in float32, `answers` are prompts with their outputs. More
    than a share of `same` of all tokens are the best ones: of one short answer, two near-ties would
    be too many. Raises AssertionError.
    """
    best: list[bool] = []
    for prompt, output in answers:
        logits = forward(architecture, plain, (*prompt, *output)).logits[len(prompt) - 1 : -1]
        chosen = logits[np.arange(len(output)), list(output)]
        margin = logits.max(axis=1) - chosen
        spread = logits.std()
        assert (margin < 0.1 * spread).all(), f"margins {margin.max()} of a spread of {spread}"
        best += (margin == 0).tolist()
    assert np.mean(best) > same, f"{best.count(False)} of {len(best)} are not the best"
