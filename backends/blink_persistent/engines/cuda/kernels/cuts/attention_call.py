"""What the kernels of attention in CUDA C++ share: parameters and limits (attention_call.h)."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_uint32, c_uint64

from blink_server.importers.checkpoint import Architecture

MOST_GROUP = 8  # heads that share a key and a value
HEAD_DIMS = (64, 128)


class AttentionCall(ctypes.Structure):
    """A kernel's parameters (`AttentionCall` there)."""

    _fields_ = [
        *((name, c_uint64) for name in ("qkv", "rounded", "bias", "q_norm", "k_norm")),
        *((name, c_uint64) for name in ("cos", "sin", "lengths", "tables")),
        *((name, c_uint64) for name in ("keys", "values", "partial", "log_sums", "arrived", "out")),
        *((name, c_float) for name in ("scale", "epsilon")),
        *((name, c_uint32) for name in ("parts", "part_rows", "rows", "heads", "kv_heads")),
        *((name, c_uint32) for name in ("max_blocks", "block_size", "splits")),
    ]


def attends_ahead(architecture: Architecture) -> bool:
    """Is there attention that reads ahead for a model's heads?"""
    group = architecture.heads // architecture.kv_heads
    return architecture.head_dim in HEAD_DIMS and group <= MOST_GROUP
