"""What is told of a version when its state changes, to plugins, logs and metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStateChange:
    """One change of one generation of a version.

    States are LOADING, READY, DRAINING, UNLOADING and UNAVAILABLE; `reason` says why it is
    UNAVAILABLE and is empty otherwise. `epoch` counts the version's loads. `seconds`: how long it
    was in the state before. `at`: seconds since 1970.
    """

    model: str
    version: int
    epoch: int
    previous: str
    state: str
    reason: str
    seconds: float
    at: float

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        return (
            f"{self.model}:{self.version} {self.state}{reason} | epoch={self.epoch} "
            f"previous={self.previous} seconds={self.seconds:.3f}"
        )
