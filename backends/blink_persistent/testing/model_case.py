"""One random small model of the engine `cuda`: its steps, and the plain numpy decoder's answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from blink_persistent.engines.cuda.weights import fill_weights
from blink_persistent.testing.paged_decoder import PagedDecoder
from blink_server.testing.llama_reference import Forward, forward
from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture

TOLERANCE = 2e-5  # of float32 values


class ModelCase:
    """Float32, on the CPU. The same `changes` give the same weights and the same tokens."""

    def __init__(self, make_kernels: Callable[[Any], Any], changes: Mapping[str, Any]) -> None:
        """`changes` go over the tiny architecture; `make_kernels` is given what comes of it."""
        self.checkpoint = random_checkpoint(tiny_architecture(**changes), seed=3)
        self.plain = self.checkpoint.dequantized()
        architecture = self.checkpoint.architecture

        def fill(name: str, part: Any) -> None:
            part.copy_(torch.from_numpy(self.plain[name]))

        weights = fill_weights(architecture, fill, device="cpu", dtype=torch.float32)
        self.paged = PagedDecoder.build(
            architecture, weights, make_kernels(architecture), device="cpu"
        )
        self.random = np.random.default_rng(5)

    def tokens(self, count: int) -> tuple[int, ...]:
        """The next random tokens."""
        vocabulary = self.checkpoint.architecture.vocabulary_size
        return tuple(self.random.integers(0, vocabulary, count).tolist())

    def expect(self, token_ids: tuple[int, ...]) -> Forward:
        """What the plain decoder makes of a text."""
        return forward(self.checkpoint.architecture, self.plain, token_ids)

    def close_to(self, found: torch.Tensor, expected: npt.NDArray[Any]) -> None:
        """Raises AssertionError where they differ by more than rounding."""
        np.testing.assert_allclose(found.numpy(), expected, atol=TOLERANCE, rtol=TOLERANCE)
