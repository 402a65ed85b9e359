from __future__ import annotations

import pytest

from blink_server.finished_request import FinishedRequest
from blink_server.model_events import ModelStateChange
from blink_server.testing.skeletons.observer import plugin
from blink_server.testing.with_plugin import plugins_with


def test_tokens_are_counted_by_model() -> None:
    request = FinishedRequest(
        model="tiny",
        version=1,
        operation="chat",
        outcome="stop",
        prompt_tokens=3,
        generated_tokens=5,
        received_ns=0,
        first_token_ns=1,
        finished_ns=2,
        timing=None,
    )
    before = plugin.tokens["tiny"]
    plugins_with(plugin).observers.request_finished(request)
    assert plugin.tokens["tiny"] == before + 5


def test_what_is_unavailable_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    change = ModelStateChange(
        model="tiny",
        version=1,
        epoch=1,
        previous="READY",
        state="UNAVAILABLE",
        reason="no memory",
        seconds=1.0,
        at=0.0,
    )
    plugins_with(plugin).state_changed(change)
    assert "tiny:1 is unavailable: no memory" in caplog.text
