"""Which TensorRT there is, and what it says when something fails."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest

from blink_persistent.engines.tensorrt.flavour import FLAVOURS, installed_flavour, message_log
from blink_server.errors import Unavailable


@pytest.fixture
def none_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.usefixtures("none_installed")
def test_what_to_install_is_named() -> None:
    with pytest.raises(Unavailable, match=r"'blink-server\[tensorrt\]' or 'blink-server\[tens"):
        installed_flavour()
    with pytest.raises(Unavailable, match=r"TensorRT for RTX: .*blink-server\[tensorrt-rtx\]"):
        FLAVOURS["rtx"].load()


def test_a_module_that_cannot_be_loaded_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "tensorrt", None)  # an import of it fails
    with pytest.raises(Unavailable, match="TensorRT cannot be loaded: import of tensorrt halted"):
        FLAVOURS["full"].load()


def test_the_first_that_is_installed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "tensorrt_rtx" or None)
    assert installed_flavour().name == "rtx"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert installed_flavour().name == "full"


def test_errors_explain_a_failure_once(trt: Any, caplog: pytest.LogCaptureFixture) -> None:
    logger, kinds = message_log(trt), trt.ILogger
    with caplog.at_level(logging.WARNING):
        logger.log(kinds.ERROR, "first")
        logger.log(kinds.WARNING, "careful")
        logger.log(kinds.INTERNAL_ERROR, "second")
        logger.log(kinds.VERBOSE, "chatter")
    assert [record.message for record in caplog.records] == [
        *("TensorRT: first", "TensorRT: careful", "TensorRT: second")
    ]
    assert logger.explanation() == "first; second"
    assert logger.explanation() == "no reason given"
