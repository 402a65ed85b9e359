"""What a worker knows of one version, and of the server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from blink_server.backend import ModelVersion, SchedulerStats, Session, SlotTable
from blink_server.http.text_parts import TextParts
from blink_server.messages import EndpointKey
from blink_server.plugin_blame import of_plugin
from blink_server.repository.harness import State

log = logging.getLogger(__name__)

T = TypeVar("T")


class ServerState(StrEnum):
    """What the provisioner says of the whole server, in the catalog."""

    STARTING = "STARTING"
    READY = "READY"
    DRAINING = "DRAINING"


@dataclass(frozen=True, slots=True, eq=False)
class ModelEntry:
    """One generation of a version, as the catalog has it; a READY one has session and text parts.

    `epoch` tells one start of the version's runner from the next. `reason` says why it is not
    READY. `aliases` are further names of its model. `created`: seconds since 1970. `awaited`: what
    served has made way for it, so that requests wait until it does.
    """

    version: ModelVersion
    epoch: int
    state: State
    reason: str = ""
    aliases: tuple[str, ...] = ()
    session: Session | None = None
    text: TextParts | None = None
    created: int = 0
    awaited: bool = False
    load_seconds: float = 0.0
    _failed: set[str] = field(default_factory=set, init=False, repr=False)

    @property
    def key(self) -> EndpointKey:
        return EndpointKey(self.version.model, self.version.version, self.epoch)

    @property
    def serves(self) -> bool:
        """Whether new requests may have it."""
        return self.state is State.READY and self.session is not None and self.text is not None

    def stats(self) -> SchedulerStats | None:
        """Of its scheduler; None where there is none, or its backend fails to tell."""
        return None if self.session is None else self._told("stats", self.session.stats)

    def slots(self) -> SlotTable | None:
        """Of its ring, likewise."""
        return None if self.session is None else self._told("slots", self.session.slots)

    def _told(self, what: str, ask: Callable[[], T | None]) -> T | None:
        # What is wrong with one backend must not keep others' metrics from being told.
        try:
            return ask()
        except Exception as error:
            if what not in self._failed:  # the console asks ten times a second
                self._failed.add(what)
                log.exception("%s: its session met a defect%s", self.key, of_plugin(error))
            return None


def why_not_ready(entry: ModelEntry) -> str:
    """The state of an entry in words, with its reason: 'unavailable: runner exited'."""
    state = entry.state.value.lower() if entry.state is not State.READY else "not connected yet"
    return f"{state}: {entry.reason}" if entry.reason else state
