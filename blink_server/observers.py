"""Tells plugins what happens; what an observer raises is logged and changes nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from blink_server.model_events import ModelStateChange
from blink_server.plugin_door import Door

if TYPE_CHECKING:
    from blink_server.finished_request import FinishedRequest

log = logging.getLogger(__name__)


class Observers:
    """The plugins that observe something, in their order."""

    def __init__(self, door: Door) -> None:
        hooks = ("blink_model_state_changed", "blink_request_finished")
        self._observing = {hook: door.implementations(hook) for hook in hooks}

    def model_state_changed(self, change: ModelStateChange) -> None:
        """A version's state has changed."""
        self._tell("blink_model_state_changed", change)

    def request_finished(self, request: FinishedRequest) -> None:
        """A choice of a request has ended."""
        self._tell("blink_request_finished", request)

    def _tell(self, hook: str, event: object) -> None:
        for name, function, takes in self._observing[hook]:
            try:
                function(*((event,) if takes else ()))
            except Exception:
                log.exception("plugin %s: %s failed", name, hook)
