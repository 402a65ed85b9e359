"""The engine `cuda`'s decoder behind the scheduler on the host: its steps in plain PyTorch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from blink_persistent.engines import EngineShape, Launch
from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.engines.cuda.memory import most_sampled, most_tokens
from blink_persistent.engines.cuda.model import Decoder, rotary_tables
from blink_persistent.engines.cuda.step_tensors import KvCache, StepInputs, Workspace
from blink_persistent.engines.cuda.steps import enqueue_step
from blink_persistent.engines.cuda.weights import Weights
from blink_persistent.graph_grid import DECODE, PREFILL, GraphKey
from blink_persistent.samplers.default import DefaultSampler
from blink_server.importers.checkpoint import Architecture

_PLACES: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}
_INPUTS = ("token_ids", "start_positions", "lengths", "cu_seqlens", "block_tables")


class CudaOnHost:
    """Fulfils `Provisioned`, in float32. `launches`: how many graphs of each phase have run."""

    def __init__(self, architecture: Architecture, weights: Weights, shape: EngineShape) -> None:
        self.shape, self.host = shape, shape.host_engine()
        self.launches: Counter[int] = Counter()
        self._sampling = DefaultSampler().host(self.host)
        self._inputs = {phase: self._views(phase) for phase in (DECODE, PREFILL)}
        sizes = most_tokens(shape.grid), most_sampled(shape.grid)
        pages = shape.block_count, shape.block_size
        self._decoder = Decoder(
            architecture=architecture,
            weights=weights,
            rotary=rotary_tables(architecture, shape.context_length, device="cpu"),
            cache=KvCache.allocate(architecture, *pages, **_PLACES),
            work=Workspace.allocate(architecture, *sizes, **_PLACES),
            kernels=ReferenceKernels(),
        )

    def step(self, launch: Launch) -> None:
        """Run one launched graph to its end."""
        self.launches[launch.phase] += 1
        key = GraphKey(launch.phase, launch.sequences, launch.tokens, launch.rows)
        enqueue_step(self._decoder, self._inputs, key, self, None)

    def record(self, phase: int, count: int, stream: Any, *, first: int = 0) -> None:
        """As a `DeviceSampling`, at once and by the host's sampler."""
        self._sampling.sample(phase, count, self._decoder.work.logits[first:].numpy())

    def close(self) -> None:
        """Nothing is to be given back."""

    def _views(self, phase: int) -> StepInputs:
        arrays = self.host.arrays(phase)
        tensors = {name: torch.from_numpy(arrays[name]) for name in _INPUTS}
        n = len(tensors["lengths"])
        return StepInputs(**tensors | {"block_tables": tensors["block_tables"].view(n, -1)})
