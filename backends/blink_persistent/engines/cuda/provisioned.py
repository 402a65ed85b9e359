"""A version on a GPU with everything built: what a scheduler on the device needs of it.

The GPU is the first that CUDA_VISIBLE_DEVICES leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from blink_persistent.engines import TOKEN_GRANULARITY, DeviceSampling, Sampler
from blink_persistent.engines.cuda.capture import capture_graphs
from blink_persistent.engines.cuda.engine import fixed_bytes, kv_entry_bytes
from blink_persistent.engines.cuda.kernels.fused import FusedKernels
from blink_persistent.engines.cuda.model import Decoder, rotary_tables
from blink_persistent.engines.cuda.options import CudaOptions
from blink_persistent.engines.cuda.step_tensors import (
    KvCache,
    StepInputs,
    Workspace,
    device_inputs,
    device_words,
)
from blink_persistent.engines.cuda.weights import Weights, random_weights, read_weights
from blink_persistent.gpu.driver import Gpu
from blink_persistent.gpu.engine_buffers import EngineLimits, allocate_engine
from blink_persistent.graph_grid import DECODE, PREFILL, GraphGrid, GraphKey
from blink_server.backend import ModelVersion
from blink_server.errors import Unavailable

SCHEDULERS_PROCESSORS = 1  # multiprocessors that the resident scheduler keeps to itself
HOPPER = 9  # compute capability from which kernels can be chained

Progress = Callable[[str, float], None]


class CudaProvisioned:
    """`DeviceScheduler(engine.gpu, ring, engine.tables, engine.graphs)` serves it.

    `block_count` includes the null block. One thread; `close` only once no scheduler runs.
    """

    def __init__(
        self,
        version: ModelVersion,
        grid: GraphGrid,
        options: CudaOptions,
        sampler: Sampler,
        *,
        progress: Progress,
    ) -> None:
        self.grid = grid
        self.gpu = Gpu()
        self.device = torch.device("cuda", 0)
        try:
            self._build(version, options, sampler, progress)
        except BaseException:
            self.close()
            raise

    @property
    def graphs(self) -> list[Any]:
        """Executable graphs in the order of the grid's keys."""
        return self.captured.executables

    def close(self) -> None:
        """Give all device memory back."""
        self.gpu.close()
        for name in ("captured", "decoder", "inputs", "sampler"):
            self.__dict__.pop(name, None)
        torch.cuda.empty_cache()

    def step(self, key: GraphKey) -> None:
        """Enqueue one step on the current stream, as it is captured."""
        inputs = self.inputs[key.phase]
        if key.phase == DECODE:
            self.decoder.decode(inputs, key.sequences)
        else:
            self.decoder.prefill(inputs, key.sequences, key.tokens)
        stream = torch.cuda.current_stream().cuda_stream
        self.sampler.record(key.phase, key.sequences, stream)

    def _build(
        self, version: ModelVersion, options: CudaOptions, sampler: Sampler, progress: Progress
    ) -> None:
        device = self.device
        context = version.config["limits"]["context_length"]
        share = version.config["limits"].get("memory_fraction", 0.9)
        architecture = options.architecture
        budget = int(share * torch.cuda.mem_get_info(device)[1])
        self.block_count = choose_block_count(options, self.grid, context, budget)
        self.limits = EngineLimits(
            context_length=context,
            vocabulary_size=architecture.vocabulary_size,
            block_size=options.block_size,
            block_count=self.block_count,
            eos_token_ids=tuple(version.config["eos_token_ids"]),
            token_granularity=TOKEN_GRANULARITY,
        )
        self.tables = allocate_engine(self.gpu, self.grid, self.limits)
        weights = _load(version, options, device, lambda part: progress("weights", part))
        self.decoder = self._decoder(weights, options)
        self.inputs: dict[int, StepInputs] = {
            phase: device_inputs(self.tables, phase, device=device) for phase in (DECODE, PREFILL)
        }
        logits = self.decoder.work.logits.data_ptr()
        self.sampler: DeviceSampling = sampler.device(self.gpu, self.tables, logits)
        torch.cuda.synchronize(device)
        self.captured = capture_graphs(
            self.gpu, self.grid, self.step, progress=lambda part: progress("graphs", part)
        )
        self.reset()

    def reset(self) -> None:
        """As before the first step: no step completed, KV memory all zero."""
        for buffers in self.tables.buffers:
            device_words(buffers.completion, 1, device=self.device).zero_()
        self.decoder.cache.pages.zero_()
        torch.cuda.synchronize(self.device)

    def _decoder(self, weights: Weights, options: CudaOptions) -> Decoder:
        architecture, grid, device = options.architecture, self.grid, self.device
        places = {"device": device, "dtype": torch.bfloat16}
        properties = torch.cuda.get_device_properties(device)
        return Decoder(
            architecture=architecture,
            weights=weights,
            rotary=rotary_tables(architecture, self.limits.context_length, device=device),
            cache=KvCache.allocate(architecture, self.block_count, options.block_size, **places),
            work=Workspace.allocate(
                architecture,
                max(grid.max_rows, grid.max_prefill_tokens),
                max(grid.max_rows, grid.max_sequences),
                **places,
            ),
            kernels=FusedKernels(
                architecture,
                max_rows=grid.max_rows,
                capacity=self.limits.max_blocks * options.block_size,
                processors=properties.multi_processor_count - SCHEDULERS_PROCESSORS,
                chained=properties.major >= HOPPER,
                device=device,
            ),
        )


def _load(
    version: ModelVersion, options: CudaOptions, device: Any, progress: Callable[[float], None]
) -> Weights:
    if options.file is None:
        return random_weights(options.architecture, device=device, dtype=torch.bfloat16)
    path = version.directory / options.file
    return read_weights(path, options.architecture, device=device, progress=progress)


def choose_block_count(options: CudaOptions, grid: GraphGrid, context: int, budget: int) -> int:
    """The blocks asked for, or all that `budget` bytes leave room for, the null block included.

    Raises Unavailable where they do not fit, or where what is left does not hold one request of
    `context` tokens.
    """
    block_bytes = options.block_size * kv_entry_bytes(options.architecture)
    fixed = fixed_bytes(options, grid)
    fits = (budget - fixed) // block_bytes
    least = options.block_count or 1 + -(-context // options.block_size)
    if least > fits:
        raise Unavailable(
            f"memory: {fixed + least * block_bytes} bytes are needed, the version's share of the "
            f"device's memory is {budget}"
        )
    return options.block_count or fits
