"""Tells plugins what happens; what an observer raises is logged and changes nothing."""

from __future__ import annotations

import logging

from blink_server.model_events import ModelStateChange
from blink_server.plugin_door import Door

log = logging.getLogger(__name__)


class Observers:
    """The plugins that observe something, in their order."""

    def __init__(self, door: Door) -> None:
        self._state_changed = door.implementations("blink_model_state_changed")

    def model_state_changed(self, change: ModelStateChange) -> None:
        """A version's state has changed."""
        for name, function, takes in self._state_changed:
            try:
                function(*((change,) if takes else ()))
            except Exception:
                log.exception("plugin %s: blink_model_state_changed failed", name)
