"""One model in memory, and the time of its decode steps and their products by any kernels.

Random weights at the model's full shape, `CONTEXT` entries of KV a row in blocks at random places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from replays import microseconds

from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.kernels.ahead.attention import AheadAttention
from blink_persistent.engines.cuda.kernels.ahead.primed_norm import PrimedNorm
from blink_persistent.engines.cuda.kernels.ahead.products import MakeAhead, no_ahead
from blink_persistent.engines.cuda.kernels.cuts.choices import (
    AnyCut,
    DecodeTiling,
    Shape,
    row_tile,
)
from blink_persistent.engines.cuda.kernels.fused import FusedKernels, product_shapes
from blink_persistent.engines.cuda.model import Decoder, rotary_tables
from blink_persistent.engines.cuda.step_tensors import KvCache, StepInputs, Workspace, empty_inputs
from blink_persistent.engines.cuda.weights import random_weights
from blink_persistent.gpu.compile import DeviceCodeError
from blink_persistent.gpu.driver import CudaError

CONTEXT, BLOCK_SIZE, MAX_BLOCKS, MAX_ROWS = 1024, 64, 32, 64
PROCESSORS = 131
NAMES = ("qkv", "output", "gate_up", "down", "head")
WITH_EXPERTS = ("qkv", "output", "router", "head")  # for the experts see expert_choices.py


class Bench:
    """One model in memory, and the time of its steps with any choice."""

    def __init__(self, model: str, make_ahead: MakeAhead = no_ahead) -> None:
        self.shape = shape = ARCHITECTURES[model]
        self.make_ahead = make_ahead
        self.ahead_attention: AheadAttention | None = None
        self.primed_norm: PrimedNorm | None = None
        self.names = WITH_EXPERTS if shape.experts else NAMES
        places = {"device": "cuda", "dtype": torch.bfloat16}
        self.weights = random_weights(shape, **places)
        count = 1 + MAX_ROWS * (CONTEXT // BLOCK_SIZE + 1)
        self.cache = KvCache.allocate(shape, count, BLOCK_SIZE, **places)
        self.cache.pages.normal_()
        self.work = Workspace.allocate(shape, MAX_ROWS, MAX_ROWS, **places)
        self.rotary = rotary_tables(shape, MAX_BLOCKS * BLOCK_SIZE, device="cuda")
        self.inputs: StepInputs = empty_inputs(MAX_ROWS, MAX_ROWS, MAX_BLOCKS, device="cuda")
        self.inputs.token_ids.random_(shape.vocabulary_size)
        order = (torch.randperm(count - 1, device="cuda") + 1).view(MAX_ROWS, -1)
        self.inputs.block_tables[:, : order.shape[1]] = order.int()
        self.inputs.start_positions.fill_(CONTEXT)
        self.inputs.lengths.fill_(CONTEXT + 1)

    def kernels(
        self, cuts: Any, tiling: DecodeTiling | None, *, chained: bool = True
    ) -> FusedKernels:
        return FusedKernels(
            self.shape,
            max_rows=MAX_ROWS,
            capacity=MAX_BLOCKS * BLOCK_SIZE,
            processors=PROCESSORS,
            chained=chained,
            device="cuda",
            decode=tiling,
            cuts=cuts,
            make_ahead=self.make_ahead,
            ahead_attention=self.ahead_attention,
            primed_norm=self.primed_norm,
        )

    def step_us(self, rows: int, kernels: FusedKernels) -> float:
        return microseconds(self.step(rows, kernels))

    def step(self, rows: int, kernels: FusedKernels) -> Callable[[], object]:
        decoder = Decoder(self.shape, self.weights, self.rotary, self.cache, self.work, kernels)
        return lambda: decoder.decode(self.inputs, rows)

    def weights_of(self, name: str) -> list[torch.Tensor]:
        if name == "head":
            return [self.weights.head]
        return [getattr(layer, name) for layer in self.weights.layers]

    def product_us(self, name: str, rows: int, cut: AnyCut | None) -> float:
        """Of one product; infinite where there can be no such kernel."""
        weights, tile = self.weights_of(name), row_tile(rows)
        shape = (*weights[0].shape,)
        cuts: dict[Any, Any] = {}
        if cut is not None:  # the others', so that it is chained
            cuts = dict.fromkeys((other, tile) for other in product_shapes(self.shape))
            cuts[shape, tile] = cut
        kernels = self.kernels(cuts, DecodeTiling())
        x = torch.randn(rows, shape[1], device="cuda").bfloat16()
        out = self.out(name, rows, shape)

        def multiply(weight: torch.Tensor) -> torch.Tensor:
            """The product's parts."""
            if name == "gate_up":
                kernels.gated_product(x, weight, self.work.gate_up, out, rows)
            elif name in ("head", "router"):
                kernels.vocabulary_product(x, weight, out)
            else:
                return kernels.product(x, weight, out, rows)
            return out[None]

        try:
            found = multiply(weights[0]).float().sum(dim=0)
        except triton.runtime.errors.OutOfResources:
            return float("inf")
        except (DeviceCodeError, CudaError) as error:
            print(name, rows, cut, error, flush=True)
            return float("inf")
        expected = x.float() @ weights[0].float().t()
        if name == "gate_up":
            gate, up = expected.chunk(2, dim=1)
            expected = torch.nn.functional.silu(gate) * up
        wrong = float((found - expected).norm() / expected.norm())
        assert wrong < 1e-2, (name, rows, cut, wrong)

        return microseconds(lambda: [multiply(weight) for weight in weights]) / len(weights)

    def out(self, name: str, rows: int, shape: Shape) -> torch.Tensor:
        if name == "head":
            return self.work.logits[:rows]
        if name == "router":
            return self.work.experts.scores[:rows]
        size = shape[0] // 2 if name == "gate_up" else shape[0]
        return torch.empty(rows, size, device="cuda", dtype=torch.bfloat16)


def kernels_of(work: Callable[[], object]) -> dict[str, list[float]]:
    """Calls, and microseconds of one, of every kernel that `work` launches eagerly."""
    with torch.no_grad():
        work()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            work()
            torch.cuda.synchronize()
    events = [event for event in profile.key_averages() if event.self_device_time_total]
    return {e.key[:60]: [e.count, round(e.self_device_time_total / e.count, 2)] for e in events}
