"""The sampler `default` on a GPU: the last kernel of every step's graph (sampler_gpu.cu)."""

from __future__ import annotations

import ctypes
from ctypes import c_uint32, c_uint64
from typing import Any

from blink_persistent.gpu.chained_launch import ChainedKernel
from blink_persistent.gpu.driver import Gpu
from blink_persistent.gpu.structs import EngineTables, PhaseBuffers, SamplingRow

LANES = 1024  # threads of a row's only block
CLUSTERED_LANES = 512  # threads of each block of a row that has several
CLUSTERED = "sm_90"  # the architecture whose rows have several
MAX_VOCABULARY = 1 << 19  # kMaxVocabulary in sampler_block.h


class SamplerGpu(ctypes.Structure):
    """Parameters of the sampler's kernel (sampler_gpu.cu)."""

    _fields_ = [
        ("engine", EngineTables),
        ("logits", c_uint64),
        ("scratch", c_uint64),
        ("ended", c_uint64),
    ]


SAMPLER_STRUCTS = (PhaseBuffers, SamplingRow, EngineTables, SamplerGpu)


class DeviceSampler:
    """Bound to an engine's step buffers and logits; `gpu` owns its memory and code.

    The kernel also counts the step as completed, so it has to be the last one of a step.
    """

    def __init__(self, gpu: Gpu, tables: EngineTables, logits: int, *, plugin: str = "") -> None:
        """`logits`: address of float32 [most rows and sequences of a step, vocabulary_size].

        `plugin`: the code of a sampler that chooses instead (sampler_plugin.h). Raises ValueError
        for a vocabulary that is too large.
        """
        if tables.vocabulary_size > MAX_VOCABULARY:
            raise ValueError(
                f"the sampler takes vocabularies up to {MAX_VOCABULARY}: {tables.vocabulary_size}"
            )
        rows = max(tables.max_rows, tables.max_sequences)
        self._gpu = gpu
        program = gpu.load("sampler_gpu.cu", SAMPLER_STRUCTS, prologue=plugin)
        self._kernel = program.function("blink_sample")
        self._clustered: ChainedKernel | None = None
        if gpu.arch == CLUSTERED:
            function = program.function("blink_sample_clustered")
            self._clustered = ChainedKernel(gpu, function, threads=CLUSTERED_LANES, shared_bytes=0)
        self._address = gpu.place(
            SamplerGpu(
                engine=tables,
                logits=logits,
                scratch=gpu.allocate(scratch_bytes(rows, tables.vocabulary_size)),
                ended=gpu.allocate(4),
            )
        )

    def record(self, phase: int, count: int, stream: Any, *, first: int = 0) -> None:
        """Launch it on a stream, for the first `count` rows of a phase.

        Their logits begin at row `first`.
        """
        blocks = blocks_of_row(count)
        if self._clustered is None or blocks == 1:
            arguments = (self._address, c_uint64), (phase, c_uint32), (first, c_uint32)
            self._gpu.launch(self._kernel, count, LANES, stream, *arguments)
            return
        values = c_uint64(self._address), c_uint32(phase), c_uint32(first)
        grid = count * blocks
        self._clustered.launch(grid, int(stream), *values, chained=False, cluster=blocks)


def blocks_of_row(rows: int) -> int:
    """Blocks of a cluster that samples a row, where all rows are to be sampled at once.

    As many as run at once, two on a multiprocessor: each doubling saves a row with top_p hundreds
    of microseconds, and costs a greedy one 4 at most. Not 2, which have the threads of one block.
    """
    return 8 if rows <= 16 else 4 if rows <= 64 else 1


def scratch_bytes(rows: int, vocabulary_size: int) -> int:
    """Device memory that sampling `rows` rows takes beside the logits."""
    return 8 * rows * vocabulary_size
