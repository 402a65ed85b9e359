"""One version's state machine. Pure: it starts, stops and touches nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """What a version can do now. Only READY versions are given new requests."""

    LOADING = "LOADING"  # its runner starts, maps weights, captures graphs
    READY = "READY"  # it serves
    DRAINING = "DRAINING"  # requests in flight finish; no new ones
    UNLOADING = "UNLOADING"  # its runner is ending
    UNAVAILABLE = "UNAVAILABLE"  # it cannot serve; the harness has the reason


ALLOWED: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.LOADING: frozenset({State.READY, State.UNLOADING, State.UNAVAILABLE}),
        State.READY: frozenset({State.DRAINING, State.UNAVAILABLE}),
        State.DRAINING: frozenset({State.UNLOADING}),
        State.UNLOADING: frozenset({State.UNAVAILABLE}),
        State.UNAVAILABLE: frozenset({State.LOADING}),
    }
)
"""From each state, the states that may follow it."""


class TransitionError(RuntimeError):
    """A version was asked to go to a state that cannot follow its present one: a defect."""


Observer = Callable[["Harness", State], None]
"""Called as `observer(harness, previous_state)` after each change; it must not raise or change
the harness."""


class Harness:
    """The state of one version, for one thread.

    `epoch` counts the loads: it is 1 during the first and grows by one with each, so that
    endpoints of an earlier load can be told from the present one. `reason` says why the version
    is UNAVAILABLE and is empty in every other state.
    """

    def __init__(self, model: str, version: int, *, epoch: int = 0) -> None:
        """Begin as UNAVAILABLE("not loaded"); `epoch` is that of the last load known, 0 if none."""
        self.model = model
        self.version = version
        self._state = State.UNAVAILABLE
        self._reason = "not loaded"
        self._epoch = epoch
        self._observers: list[Observer] = []
        self._notifying = False

    def __repr__(self) -> str:
        reason = f" ({self._reason})" if self._reason else ""
        return f"<{self.model}:{self.version} epoch {self._epoch} {self._state}{reason}>"

    @property
    def state(self) -> State:
        return self._state

    @property
    def reason(self) -> str:
        return self._reason

    @property
    def epoch(self) -> int:
        return self._epoch

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of every later change, after the observers that came before it."""
        self._observers.append(observer)

    def load(self, epoch: int | None = None) -> int:
        """A load begins: UNAVAILABLE -> LOADING. Returns its epoch, by default the next one.

        `epoch` is for whoever counts the loads of several generations of the version together.
        """
        self._go(State.LOADING, epoch=epoch)
        return self._epoch

    def ready(self) -> None:
        """The version can serve: LOADING -> READY."""
        self._go(State.READY)

    def drain(self) -> None:
        """No new requests: READY -> DRAINING."""
        self._go(State.DRAINING)

    def unload(self) -> None:
        """Its runner is told to end: LOADING or DRAINING -> UNLOADING."""
        self._go(State.UNLOADING)

    def unavailable(self, reason: str) -> None:
        """It failed or its unloading has ended: LOADING, READY or UNLOADING -> UNAVAILABLE.

        `reason` is for the model's users and must not be empty (ValueError).
        """
        if not reason:
            raise ValueError("an UNAVAILABLE version needs a reason")
        self._go(State.UNAVAILABLE, reason)

    def _go(self, state: State, reason: str = "", *, epoch: int | None = None) -> None:
        if self._notifying:
            raise TransitionError(f"{self!r}: an observer asked for {state}")
        if state not in ALLOWED[self._state]:
            raise TransitionError(f"{self!r} cannot become {state}")
        previous, self._state, self._reason = self._state, state, reason
        if state is State.LOADING:
            self._epoch = self._epoch + 1 if epoch is None else epoch
        self._notifying = True
        try:
            for observer in self._observers:
                observer(self, previous)
        finally:
            self._notifying = False
