"""What an agent is told of the ranges that its gate holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_RESUMABLE_SECONDS = 30.0
_LEASED = ("range", "epoch", "bytes", "type", "descriptors")  # what is not a limit


def offer_of(answer: Mapping[str, Any], ranges: int) -> dict[str, Any]:
    """The offer of `ranges` ranges that this answer has leased, all but its address."""
    return {
        "transport": "rdma",
        "first_range": answer["range"],
        "ranges": ranges,
        "epoch": answer["epoch"],
        "limits": {key: value for key, value in answer.items() if key not in _LEASED},
        "resumable_seconds": _RESUMABLE_SECONDS,
    }
