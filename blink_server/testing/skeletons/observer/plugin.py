"""The observer `my_plugin`: counts tokens by model. Replace it by yours."""

from __future__ import annotations

import logging
from collections import Counter

from blink_server.finished_request import FinishedRequest
from blink_server.hookspecs import hookimpl
from blink_server.model_events import ModelStateChange

log = logging.getLogger(__name__)

tokens: Counter[str] = Counter()  # of this worker


@hookimpl
def blink_request_finished(request: FinishedRequest) -> None:
    tokens[request.model] += request.generated_tokens


@hookimpl
def blink_model_state_changed(change: ModelStateChange) -> None:
    if change.state == "UNAVAILABLE":
        log.warning("%s:%d is unavailable: %s", change.model, change.version, change.reason)
