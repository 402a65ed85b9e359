"""Fills an engine's step buffers as a scheduler would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
import torch
from step_work import Chunk

from blink_persistent.engines.cuda.provisioned import CudaProvisioned
from blink_persistent.gpu.structs import SamplingRow
from blink_persistent.graph_grid import DECODE, PREFILL

ACTIVE = 1  # of a sampling row's flags


def fill_decode(engine: CudaProvisioned, rows: int, context: int) -> None:
    """All rows active, with `context` entries each and one token to come."""
    inputs = engine.inputs[DECODE]
    blocks = -(-(context + 1) // engine.limits.block_size)
    order = torch.randperm(engine.block_count - 1, device="cuda")[: rows * blocks] + 1
    inputs.block_tables[:rows, :blocks] = order.view(rows, blocks).int()
    inputs.token_ids[:rows].random_(engine.limits.vocabulary_size)
    inputs.start_positions[:rows] = context
    inputs.lengths[:rows] = context + 1
    fill_sampling(engine, DECODE, rows)


def fill_prefill(engine: CudaProvisioned, chunks: Sequence[Chunk]) -> None:
    """A chunk a sequence, all in blocks of their own."""
    inputs, count, size = engine.inputs[PREFILL], len(chunks), engine.limits.block_size
    order, used = torch.randperm(engine.block_count - 1, device="cuda").int() + 1, 0
    for i, chunk in enumerate(chunks):
        blocks = -(-(chunk.start + chunk.tokens) // size)
        inputs.block_tables[i, :blocks] = order[used : used + blocks]
        used += blocks
    starts, tokens = (torch.tensor(x) for x in zip(*map(astuple, chunks), strict=True))
    inputs.start_positions[:count] = starts
    inputs.lengths[:count] = starts + tokens
    inputs.cu_seqlens[0] = 0
    inputs.cu_seqlens[1 : count + 1] = tokens.cumsum(0)
    inputs.token_ids[: int(tokens.sum())].random_(engine.limits.vocabulary_size)
    fill_sampling(engine, PREFILL, count)


def fill_sampling(engine: CudaProvisioned, phase: int, count: int) -> None:
    rows = np.zeros(count, SamplingRow)
    rows["flags"] = ACTIVE
    rows["top_p"] = rows["repetition_penalty"] = 1.0
    engine.gpu.put(engine.tables.buffers[phase].sampling, rows)
    torch.cuda.synchronize()
