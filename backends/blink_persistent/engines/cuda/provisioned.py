"""A version on a GPU with everything built: what a scheduler on the device needs of it.

The GPU is the first that CUDA_VISIBLE_DEVICES leaves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from blink_persistent.engines import DeviceSampling, ProvisionLimits
from blink_persistent.engines.captured import CapturedEngine
from blink_persistent.engines.cuda.first_use import loading_in_slices
from blink_persistent.engines.cuda.kernels.ahead.attention import AheadAttention
from blink_persistent.engines.cuda.kernels.ahead.layers import AllLayers
from blink_persistent.engines.cuda.kernels.ahead.one_token_experts import OneTokenExperts
from blink_persistent.engines.cuda.kernels.ahead.primed_norm import primed_norm_for
from blink_persistent.engines.cuda.kernels.ahead.products import ahead_on
from blink_persistent.engines.cuda.kernels.cuts.choices import StepChoices
from blink_persistent.engines.cuda.kernels.cuts.hopper import measured_choices
from blink_persistent.engines.cuda.kernels.cuts.layers_cut import PAGE
from blink_persistent.engines.cuda.kernels.cuts.likely_choices import likely_choices
from blink_persistent.engines.cuda.kernels.fused import FusedKernels
from blink_persistent.engines.cuda.library import leave_multiprocessors, load_products
from blink_persistent.engines.cuda.memory import choose_block_count, most_sampled, most_tokens
from blink_persistent.engines.cuda.model import Decoder, rotary_tables
from blink_persistent.engines.cuda.options import CudaOptions
from blink_persistent.engines.cuda.recorder import TorchRecorder, empty_caches
from blink_persistent.engines.cuda.step_tensors import (
    KvCache,
    StepInputs,
    Workspace,
    device_inputs,
    device_words,
)
from blink_persistent.engines.cuda.steps import enqueue_step
from blink_persistent.engines.cuda.weights import Weights, random_weights, read_weights
from blink_persistent.engines.kv_memory import memory_budget
from blink_persistent.graph_grid import DECODE, PREFILL, GraphGrid, GraphKey
from blink_server.backend import ModelVersion

SCHEDULERS_PROCESSORS = 1  # multiprocessors that the resident scheduler keeps to itself
HOPPER = 9  # compute capability from which kernels can be chained
PRIMED = (9, 10, 11)  # those with 228 KiB of shared memory a multiprocessor; 12 has 100

WARM_UP_LAYERS = 2  # all that follow launch the same kernels

Progress = Callable[[str, float], None]


class CudaProvisioned(CapturedEngine):
    """Fulfils `DeviceProvisioned`; beyond it, `step` enqueues what is captured."""

    def __init__(
        self,
        version: ModelVersion,
        grid: GraphGrid,
        options: CudaOptions,
        limits: ProvisionLimits,
        *,
        progress: Progress,
    ) -> None:
        super().__init__(grid, limits, in_background=options.in_background)
        self.device = torch.device("cuda", 0)
        try:
            with limits.exclusive():
                torch.cuda.init()
            with loading_in_slices(limits.exclusive):
                load_products(self.device)
                self._build(version, options, limits, progress)
            self.on_capture_thread(lambda: self._capture_first(progress))
            self.reset()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give all device memory back; no scheduler may be running on it.

        At once: what holds tensors must not hold itself, or they wait for Python's garbage
        collector.
        """
        self.stop_capturing()
        self.gpu.close()
        for name in ("captured", "decoder", "inputs", "sampler"):
            self.__dict__.pop(name, None)
        self._empty_caches()

    def step(self, key: GraphKey) -> None:
        """Enqueue one step on the current stream, as it is captured."""
        self._enqueue(self.decoder, key)

    def _enqueue(self, decoder: Decoder, key: GraphKey) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        enqueue_step(decoder, self.inputs, key, self.sampler, stream)

    def _capture_first(self, progress: Progress) -> None:
        with self.gpu.exclusive():
            leave_multiprocessors(SCHEDULERS_PROCESSORS)
            recorder = TorchRecorder()
        layers = self.decoder.weights.layers[:WARM_UP_LAYERS]
        short = replace(self.decoder, weights=replace(self.decoder.weights, layers=layers))
        self.capture_first(
            recorder,
            self.step,
            lambda key: self._enqueue(short, key),
            progress,
            loading=loading_in_slices(self.gpu.exclusive),
        )
        self._empty_caches()  # captured steps need nothing of what was allocated to warm up

    def _empty_caches(self) -> None:
        with nullcontext() if _unmaps() else self.gpu.exclusive():
            empty_caches()

    def _build(
        self,
        version: ModelVersion,
        options: CudaOptions,
        limits: ProvisionLimits,
        progress: Progress,
    ) -> None:
        device = self.device
        context = version.config["limits"]["context_length"]
        architecture = options.architecture
        budget = memory_budget(version, *torch.cuda.mem_get_info(device))
        self.block_count = choose_block_count(options, self.grid, context, budget)
        self.allocate(
            version,
            vocabulary_size=architecture.vocabulary_size,
            block_size=options.block_size,
            block_count=self.block_count,
        )
        weights = _load(version, options, device, lambda part: progress("weights", part))
        self.decoder = self._decoder(weights, options)
        self.inputs: dict[int, StepInputs] = {
            phase: device_inputs(self.tables, phase, device=device) for phase in (DECODE, PREFILL)
        }
        logits = self.decoder.work.logits.data_ptr()
        self.sampler: DeviceSampling = limits.sampler.device(self.gpu, self.tables, logits)
        torch.cuda.current_stream().synchronize()  # not the device: others may reside on it

    def reset(self) -> None:
        """As before the first step: no step completed, KV memory all zero."""
        for word in self.completion_words():
            device_words(word, 1, device=self.device).zero_()
        self.decoder.cache.pages.zero_()
        torch.cuda.current_stream().synchronize()

    def _decoder(self, weights: Weights, options: CudaOptions) -> Decoder:
        architecture, grid, device = options.architecture, self.grid, self.device
        places = {"device": device, "dtype": torch.bfloat16}
        choices = self._choices(options)
        decoder = Decoder(
            architecture=architecture,
            weights=weights,
            rotary=rotary_tables(architecture, self.limits.context_length, device=device),
            cache=KvCache.allocate(architecture, self.block_count, options.block_size, **places),
            work=Workspace.allocate(architecture, most_tokens(grid), most_sampled(grid), **places),
            kernels=self._kernels(options, choices),
        )
        if not choices.layers:
            return decoder
        parts = decoder.weights, decoder.rotary, decoder.cache, decoder.work
        return replace(
            decoder, all_layers=AllLayers(self.gpu, architecture, *parts, choices.layers)
        )

    def _choices(self, options: CudaOptions) -> StepChoices:
        capability = torch.cuda.get_device_capability(self.device)
        choices = step_choices(options, capability, self._processors)
        return choices if self.gpu.may_cooperate else replace(choices, layers={})

    @property
    def _processors(self) -> int:
        """Multiprocessors that steps may fill."""
        properties = torch.cuda.get_device_properties(self.device)
        return int(properties.multi_processor_count) - SCHEDULERS_PROCESSORS

    def _kernels(self, options: CudaOptions, choices: StepChoices) -> FusedKernels:
        architecture, grid, processors = options.architecture, self.grid, self._processors
        major, _ = torch.cuda.get_device_capability(self.device)
        sizes: dict[str, Any] = {"max_rows": grid.max_rows, "device": self.device}
        attention, experts = None, None
        if choices.attentions:
            attention = AheadAttention(
                self.gpu, architecture, processors=processors, cuts=choices.attentions, **sizes
            )
        if choices.one_token_experts is not None:
            cut = choices.one_token_experts
            experts = OneTokenExperts(self.gpu, architecture, cut, device=self.device)
        return FusedKernels(
            architecture,
            capacity=self.limits.max_blocks * options.block_size,
            processors=processors,
            chained=major >= HOPPER,
            cuts=choices.cuts,
            make_ahead=ahead_on(self.gpu),
            ahead_attention=attention,
            primed_norm=primed_norm_for(self.gpu, architecture.hidden_size, choices.norms),
            one_token_experts=experts,
            **sizes,
        )


def step_choices(options: CudaOptions, capability: tuple[int, int], processors: int) -> StepChoices:
    """The kernels that the options ask for, on a GPU of that compute capability, with so many
    multiprocessors for them."""
    known = measured_choices(options.architecture, capability, processors)
    if options.block_size % PAGE != 0:
        known = replace(known, layers={})
    if not options.likely_kernels or capability[0] not in PRIMED:
        return known
    return likely_choices(options.architecture, known, capability, processors)


def _load(
    version: ModelVersion, options: CudaOptions, device: Any, progress: Callable[[float], None]
) -> Weights:
    if options.file is None:
        return random_weights(options.architecture, device=device, dtype=torch.bfloat16)
    path = version.directory / options.file
    return read_weights(path, options.architecture, device=device, progress=progress)


def _unmaps() -> bool:
    """Does PyTorch give memory back without waiting for resident kernels?"""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    return any("expandable_segments:True" in os.environ.get(name, "") for name in names)
