"""An engine whose logits are noise that depends on a sequence's length and last token alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from blink_persistent import _native
from blink_persistent.graph_grid import DECODE, PREFILL, GraphKey


def noise(length: int, last_token: int, vocabulary_size: int) -> npt.NDArray[np.float32]:
    """float32 [vocabulary_size]: the logits behind such a sequence."""
    chance = np.random.default_rng([length, last_token])
    return (3 * chance.standard_normal(vocabulary_size)).astype(np.float32)


class NoiseEngine:
    """Steps as `_native.ScriptedEngine` does, and samples with the host's sampler."""

    def __init__(self, engine: _native.HostEngine, vocabulary_size: int) -> None:
        self._vocabulary_size = vocabulary_size
        self._sampler = _native.HostSampler(engine)
        self._arrays = {phase: engine.arrays(phase) for phase in (DECODE, PREFILL)}

    def step(self, phase: int, sequences: int, tokens: int, rows: int) -> None:
        """Run one launched graph on its step buffers."""
        for part in GraphKey(phase, sequences, tokens, rows).parts:
            self._step(part.phase, part.sequences)

    def _step(self, phase: int, sequences: int) -> None:
        arrays = self._arrays[phase]
        ends = arrays["cu_seqlens"][1:] if phase == PREFILL else np.arange(1, sequences + 1)
        logits = np.zeros((sequences, self._vocabulary_size), np.float32)
        for place in range(sequences):
            if length := int(arrays["lengths"][place]):
                last = int(arrays["token_ids"][ends[place] - 1])
                logits[place] = noise(length, last, self._vocabulary_size)
        self._sampler.sample(phase, sequences, logits)
