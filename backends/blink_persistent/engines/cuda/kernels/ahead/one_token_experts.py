"""The experts of a step with one token: three kernels, and nothing is chosen or brought in order
between them.

The norm's programs have the router's scores, too; each block of the products, which are in CUDA
C++, chooses among the experts by itself; and down is summed over them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from blink_persistent.engines.cuda.kernels.cuts.choices import ROW_TILES
from blink_persistent.engines.cuda.kernels.cuts.one_token_cut import (
    SUM_FEATURES,
    ExpertCall,
    OneTokenCut,
    one_token_code,
)
from blink_persistent.engines.cuda.kernels.in_triton import routing
from blink_persistent.engines.cuda.kernels.protocol import ExpertRoom
from blink_persistent.gpu.chained_launch import ChainedKernel
from blink_persistent.gpu.driver import Gpu
from blink_server.importers.checkpoint import Architecture


class OneTokenExperts:
    """For one model's experts; the `gpu` owns its code. Steps share its memory."""

    def __init__(
        self, gpu: Gpu, architecture: Architecture, cut: OneTokenCut, *, device: Any
    ) -> None:
        """Raises DeviceCodeError or CudaError."""
        hidden, inner = architecture.hidden_size, architecture.intermediate_size
        assert cut.fits(hidden, inner)
        self._cut, self._chosen = cut, architecture.experts_per_token
        source, code = "one_token_experts_gpu.cu", one_token_code(cut, self._chosen)
        program = gpu.load(source, (ExpertCall,), prologue=code)
        self._gate = ChainedKernel(
            gpu,
            program.function("blink_expert_gate"),
            threads=32 * cut.gate.warps,
            shared_bytes=cut.gate.shared_bytes(ROW_TILES[0]),
        )
        self._sum = ChainedKernel(
            gpu,
            program.function("blink_expert_sum"),
            threads=32 * self._chosen,
            shared_bytes=cut.sum_shared_bytes(self._chosen, inner),
        )
        # What is to be added to the residual stream: by attention, by the experts.
        self._parts = torch.zeros(2, 1, hidden, dtype=torch.float32, device=device)

    def route(
        self,
        delta: Tensor,
        gain: Tensor,
        epsilon: float,
        residual: Tensor,
        out: Tensor,
        router: Tensor,
        room: ExpertRoom,
        *,
        chained: bool,
    ) -> None:
        """As `Kernels.route`: the scores come to `room`, the sum of `delta` is kept for later.

        Each program reads the whole residual stream, so none may write it.
        """
        (experts, size), scored = router.shape, self._cut.scored
        routing.norm_scores[(triton.cdiv(experts, scored),)](
            delta, gain, residual, self._parts, out, router, room.scores, epsilon,
            PARTS=len(delta), SIZE=size, TILE=triton.next_power_of_2(size),
            EXPERTS=experts, SCORED=scored,
            num_warps=8, CHAINED=chained, launch_pdl=chained,
        )  # fmt: skip

    def products(
        self, x: Tensor, gate_up: Tensor, down: Tensor, room: ExpertRoom, *, chained: bool
    ) -> Tensor:
        """As `Kernels.expert_products`, on PyTorch's current stream; float32 parts."""
        gate, blocks = self._cut.gate, down.shape[1] // SUM_FEATURES
        call = self._call(x, gate_up, room.inner, room, gate.blocks)
        stream = torch.cuda.current_stream().cuda_stream
        self._gate.launch(gate.blocks * self._chosen, stream, call, chained=chained)
        call = self._call(room.inner, down, self._parts[1], room, blocks)
        self._sum.launch(blocks, stream, call, chained=chained)
        return self._parts

    def _call(
        self, x: Tensor, weight: Tensor, out: Tensor, room: ExpertRoom, blocks: int
    ) -> ExpertCall:
        experts, _, depth = weight.shape
        arrays = {"x": x, "weight": weight, "out": out, "scores": room.scores}
        return ExpertCall(
            **{name: tensor.data_ptr() for name, tensor in arrays.items()},
            experts=experts,
            chosen=self._chosen,
            size=out.shape[1],
            depth=depth,
            blocks=blocks,
        )
