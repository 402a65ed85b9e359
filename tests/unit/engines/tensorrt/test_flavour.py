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


class Said:
    """A message log, and what it has logged."""

    def __init__(self, trt: Any, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING)
        self.log = message_log(trt)
        self._kinds, self._caplog = trt.ILogger, caplog

    def hear(self, kind: str, message: str) -> None:
        self.log.log(getattr(self._kinds, kind), message)

    @property
    def logged(self) -> list[str]:
        return [record.message for record in self._caplog.records]


@pytest.fixture
def said(trt: Any, caplog: pytest.LogCaptureFixture) -> Said:
    return Said(trt, caplog)


def test_errors_that_explain_a_failure_are_not_logged_too(said: Said) -> None:
    with said.log.explaining():
        said.hear("ERROR", "first")
        said.hear("WARNING", "careful")
        said.hear("INTERNAL_ERROR", "second")
        said.hear("VERBOSE", "chatter")
        assert said.log.explanation() == "first; second"
        assert said.log.explanation() == "no reason given"
    assert said.logged == ["TensorRT: careful"]


def test_errors_that_explain_nothing_are_logged(said: Said) -> None:
    said.hear("ERROR", "before")
    assert said.logged == ["TensorRT: before"]
    with said.log.explaining():
        with said.log.explaining():
            said.hear("ERROR", "inside")
        assert said.logged == ["TensorRT: before"], "the outer one may still explain it"
    assert said.logged == ["TensorRT: before", "TensorRT: inside"]


def test_the_last_of_many_errors_explain_and_the_others_are_logged(said: Said) -> None:
    with said.log.explaining():
        for number in range(10):
            said.hear("ERROR", str(number))
        assert said.log.explanation() == "; ".join("23456789")
    assert said.logged == ["TensorRT: 0", "TensorRT: 1"]
