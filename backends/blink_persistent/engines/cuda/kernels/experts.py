"""Mixtures of experts: launches with grids that follow from the key alone, whatever the routing."""

from __future__ import annotations

from collections.abc import Callable

import triton
from torch import Tensor

from blink_persistent.engines.cuda.kernels.ahead.one_token_experts import OneTokenExperts
from blink_persistent.engines.cuda.kernels.cuts.choices import (
    ExpertTiling,
    expert_blocks,
    expert_tiling,
    largest_step,
)
from blink_persistent.engines.cuda.kernels.in_triton import grouped, routing
from blink_persistent.engines.cuda.kernels.protocol import ExpertRoom

_LEAST_SORTED, _MOST_SORTED = 256, 1024  # pairs that `sort_pairs` looks at together


class Experts:
    """Fulfils the operations on experts of `Kernels`."""

    def __init__(
        self,
        chain: Callable[[int], dict[str, bool]],
        always: ExpertTiling | None,
        one_token: OneTokenExperts | None,
    ) -> None:
        """`chain`: options of the launches of a step of so many tokens.

        `always` is taken instead of what `expert_tiling` says; `room` must have been made for it.
        `one_token`: of steps of one token.
        """
        self._chain, self._always_tiled = chain, always
        self._one_token = one_token

    def choose_experts(self, scores: Tensor, entries: Tensor, room: ExpertRoom) -> None:
        tokens, experts = scores.shape
        chosen = room.chosen.shape[1]
        routing.choose_experts[(tokens,)](
            scores, entries, room.chosen, room.shares,
            EXPERTS=experts, EXPERT_TILE=triton.next_power_of_2(experts),
            CHOSEN=chosen, CHOSEN_TILE=triton.next_power_of_2(chosen),
            num_warps=1, **self._chain(tokens),
        )  # fmt: skip

    def expert_products(self, x: Tensor, gate_up: Tensor, down: Tensor, room: ExpertRoom) -> Tensor:
        tokens = len(x)
        if self._one_token is not None and tokens == 1:
            chained = self._chain(tokens)["CHAINED"]
            return self._one_token.products(x, gate_up, down, room, chained=chained)
        blocks, tiling = self.sort_pairs(room, tokens, len(down))
        parts = room.parts_of(tokens)
        self._multiply(x, gate_up, room.inner, room, tokens, blocks, tiling, gated=True)
        self._multiply(room.inner, down, parts, room, tokens, blocks, tiling, gated=False)
        return parts

    def sort_pairs(self, room: ExpertRoom, tokens: int, experts: int) -> tuple[int, ExpertTiling]:
        """Bring the pairs that are chosen in order; how many blocks there are, and of what kind.

        Raises ValueError where `room` was made for another tiling.
        """
        pairs = tokens * room.chosen.shape[1]
        tiling = self._always_tiled or expert_tiling(pairs, experts)
        blocks = expert_blocks(pairs, experts, tiling.rows)
        if blocks > len(room.block_experts) or blocks * tiling.rows > len(room.order):
            raise ValueError(f"no room for {blocks} blocks of {tiling.rows} pairs in order")
        routing.sort_pairs[(experts,)](
            room.chosen, room.order, room.block_experts, pairs, blocks,
            ROW_TILE=tiling.rows, EXPERT_TILE=triton.next_power_of_2(experts),
            TILE=min(max(triton.next_power_of_2(pairs), _LEAST_SORTED), _MOST_SORTED),
            **self._chain(tokens),
        )  # fmt: skip
        return blocks, tiling

    def _multiply(
        self,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        room: ExpertRoom,
        tokens: int,
        blocks: int,
        tiling: ExpertTiling,
        *,
        gated: bool,
    ) -> None:
        size, depth = out.shape[-1], weight.shape[2]
        grouped.grouped_product[(triton.cdiv(size, tiling.features), blocks)](
            x, weight, out, room.shares, room.order, room.block_experts, size, depth, tokens,
            CHOSEN=room.chosen.shape[1], ROW_TILE=tiling.rows, TILE=tiling.features,
            STEP=largest_step(depth, tiling.step), GATED=gated,
            num_warps=tiling.warps, num_stages=tiling.stages, **self._chain(tokens),
        )  # fmt: skip
