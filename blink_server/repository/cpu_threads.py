"""How the CPU threads of the machine are shared among the versions that it serves."""

from __future__ import annotations

import os
from collections.abc import Collection

from blink_server.backend import ModelVersion


def cpu_threads(version: ModelVersion, served: Collection[ModelVersion], *, cores: int) -> int:
    """Threads that a version's engine gets when it is loaded beside all that are `served`.

    Its own `limits.cpu_threads` where config.json has it, else an equal share of the `cores` that
    such limits of others leave, rounded down, but one at least. What rounding leaves over is the
    HTTP workers'.
    """
    own: int | None = version.config["limits"].get("cpu_threads")
    if own is not None:
        return own
    limits: list[int | None] = [
        each.config["limits"].get("cpu_threads") for each in served if each is not version
    ]
    left = cores - sum(limit for limit in limits if limit is not None)
    return max(1, left // (1 + limits.count(None)))


def usable_cores() -> int:
    """The cores that this process and its children may run on."""
    return len(os.sched_getaffinity(0))
