"""Rows to be sampled, in the step buffers of a host or of a GPU, without engine or scheduler."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent.engines import EngineShape, HostSampling, Sampler
from blink_persistent.gpu.structs import EngineTables, SamplingRow
from blink_persistent.graph_grid import DECODE, default_grid

ROWS = 8
EOS = (2, 5)
SAMPLING_ROW = np.dtype(SamplingRow)
ACTIVE, SUPPRESS_END = 1, 2

Logits = npt.NDArray[np.float32]


class SamplingBench:
    """Eight rows of the decode phase on the host, sampled by one sampler or another."""

    def __init__(self, vocabulary_size: int = 1003) -> None:
        self.vocabulary_size = vocabulary_size
        shape = EngineShape(
            grid=default_grid(ROWS, 16),
            context_length=64,
            vocabulary_size=vocabulary_size,
            eos_token_ids=EOS,
            block_size=16,
            block_count=64,
            rows_movable=True,
        )
        self.engine = shape.host_engine()
        tables = EngineTables.from_address(self.engine.tables_address)
        buffers = tables.buffers[DECODE]
        self.rows: npt.NDArray[Any] = np.frombuffer(
            memoryview((SamplingRow * ROWS).from_address(buffers.sampling)), SAMPLING_ROW
        )
        self.tokens = self.engine.arrays(DECODE)["output_tokens"]
        self.logprobs = np.frombuffer(
            memoryview((ctypes.c_float * ROWS).from_address(buffers.output_logprobs)), np.float32
        )
        self._lent: list[npt.NDArray[Any]] = []  # what rows point at

    def ask(self, **fields: Any) -> None:
        """Make every row that of a request at its first token, plain but for `fields`."""
        self.rows[:] = np.zeros(ROWS, SAMPLING_ROW)
        for name in ("temperature", "top_p", "repetition_penalty"):
            self.rows[name] = 1.0
        self.rows["seed"] = np.arange(ROWS) + 1000
        self.rows["flags"] = ACTIVE
        for name, value in fields.items():
            self.rows[name] = value

    def lend(self, row: int, **arrays: Any) -> None:
        """Have a row point at int32 arrays: prompt, output, stop; bias as (id, value) pairs."""
        for name, values in arrays.items():
            array = (
                np.array([(i, v) for i, v in values], np.dtype("i4,f4"))
                if name == "bias"
                else np.array(values, np.int32)
            )
            self._lent.append(array)
            self.rows[name][row] = array.ctypes.data
            counts = {"prompt": "prompt_length", "output": "output_length"}
            self.rows[counts.get(name, f"{name}_count")][row] = len(array)

    def sample(self, sampling: HostSampling, logits: Logits, count: int = ROWS) -> list[int]:
        """The tokens of the first `count` rows."""
        sampling.sample(DECODE, count, logits)
        return [int(token) for token in self.tokens[:count]]

    def bind(self, sampler: Sampler) -> HostSampling:
        """The sampler on these rows."""
        return sampler.host(self.engine)


def random_logits(seed: int, vocabulary_size: int = 1003) -> Logits:
    """float32 [ROWS, vocabulary_size], of several widths, no two of a row alike but by chance."""
    random = np.random.default_rng(seed)
    widths = random.choice([0.5, 1.0, 2.0, 5.0], ROWS)[:, None]
    logits: Logits = (random.normal(0, 1, (ROWS, vocabulary_size)) * widths).astype(np.float32)
    return logits
