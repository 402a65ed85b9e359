"""Where a version runs, by the options that all engines for GPUs have in config.json's "engine".

device: "cuda:N", the N-th GPU that the server sees. scheduler: "device", the persistent scheduler
on that GPU, or "host", a thread of the host that launches the same graphs (the paper's control).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from blink_server.backend import ModelVersion
from blink_server.errors import Problem

PLACE_OPTIONS = ("device", "scheduler")
FIRST_GPU = "cuda:0"
CPU = "cpu"
_GPU = re.compile(r"cuda:(0|[1-9]\d{0,2})")


class SchedulerKind(StrEnum):
    """Who launches a GPU's steps."""

    DEVICE = "device"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """A GPU by its number, who launches its steps, the modules that this takes, and the extra of
    this project that installs them."""

    device: int
    scheduler: SchedulerKind
    modules: tuple[str, ...]
    extra: str = "cuda"


def gpu_place(
    engine: Mapping[str, Any],
    modules: tuple[str, ...],
    *,
    default: str = FIRST_GPU,
    extra: str = "cuda",
) -> GpuPlace | None:
    """What checked options say; None is the host's CPU. `default` holds if none is named."""
    found = _GPU.fullmatch(engine.get("device", default))
    if found is None:
        return None
    scheduler = SchedulerKind(engine.get("scheduler", SchedulerKind.DEVICE))
    return GpuPlace(int(found[1]), scheduler, modules, extra)


def place_problems(version: ModelVersion, *, default: str = FIRST_GPU) -> list[Problem]:
    """What is wrong with these options. An engine for GPUs only has a GPU as its `default`."""
    file, engine = version.directory / "config.json", version.config["engine"]
    problems = []
    device, scheduler = engine.get("device", default), engine.get("scheduler")
    on_gpu = isinstance(device, str) and _GPU.fullmatch(device) is not None
    if not on_gpu and (device != CPU or default != CPU):
        others = f" or {CPU!r}" if default == CPU else ""
        expected = f"must be the number of a GPU, like {FIRST_GPU!r}{others}"
        problems.append(Problem(file, "engine.device", device, expected))
    kinds = tuple(SchedulerKind)
    if scheduler is not None and (not on_gpu or scheduler not in kinds):
        expected = f"must be one of {', '.join(kinds)}, and the device a GPU"
        problems.append(Problem(file, "engine.scheduler", scheduler, expected))
    return problems
