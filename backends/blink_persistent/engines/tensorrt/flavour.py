"""The two TensorRTs: the full one, and TensorRT for RTX, by their Python modules."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from blink_server.errors import Unavailable

log = logging.getLogger(__name__)

_KEPT = 8  # messages that explain a failure


@dataclass(frozen=True, slots=True)
class Flavour:
    """One of them. `cross_builds`: for any GPU, without one; so nothing is timed either."""

    name: str
    title: str
    modules: tuple[str, ...]  # the first that is there
    extra: str  # of this project, that installs it
    cross_builds: bool
    plugins: bool

    def module_name(self) -> str | None:
        """The module to import; None where none is installed."""
        return next((name for name in self.modules if importlib.util.find_spec(name)), None)

    def load(self) -> Any:
        """The module. Raises Unavailable naming what to install."""
        name = self.module_name()
        if name is None:
            raise Unavailable(f"needs {self.title}: pip install 'blink-server[{self.extra}]'")
        try:
            return importlib.import_module(name)
        except (ImportError, OSError) as error:
            raise Unavailable(f"{self.title} cannot be loaded: {error}") from error


FLAVOURS: Mapping[str, Flavour] = {
    flavour.name: flavour
    for flavour in (
        Flavour("full", "TensorRT", ("tensorrt",), "tensorrt", cross_builds=False, plugins=True),
        Flavour(
            "rtx",
            "TensorRT for RTX",
            ("tensorrt_rtx", "tensorrt_rtx_bindings"),
            "tensorrt-rtx",
            cross_builds=True,
            plugins=False,
        ),
    )
}


def installed_flavour() -> Flavour:
    """The first that is installed. Raises Unavailable where none is."""
    for flavour in FLAVOURS.values():
        if flavour.module_name() is not None:
            return flavour
    extras = " or ".join(f"'blink-server[{flavour.extra}]'" for flavour in FLAVOURS.values())
    raise Unavailable(f"needs TensorRT: pip install {extras}")


class MessageLog:
    """A TensorRT logger: passes messages on, and keeps the last errors for who must explain."""

    trt: Any

    def __init__(self) -> None:
        self.trt.ILogger.__init__(self)
        self._errors: deque[str] = deque(maxlen=_KEPT)
        kinds = self.trt.ILogger
        self._levels = {
            kinds.INTERNAL_ERROR: logging.ERROR,
            kinds.ERROR: logging.ERROR,
            kinds.WARNING: logging.WARNING,
            kinds.INFO: logging.DEBUG,
            kinds.VERBOSE: logging.NOTSET,
        }

    def log(self, severity: Any, msg: str) -> None:
        """Called by TensorRT, from any of its threads."""
        level = self._levels.get(severity, logging.DEBUG)
        if level >= logging.ERROR:
            self._errors.append(msg)
        if level:
            log.log(level, "TensorRT: %s", msg)

    def explanation(self) -> str:
        """The last errors, which are forgotten by it; "no reason given" where there are none."""
        told = "; ".join(self._errors) or "no reason given"
        self._errors.clear()
        return told


@cache
def _logger_class(trt: Any) -> Any:
    return type("Logger", (MessageLog, trt.ILogger), {"trt": trt})


def message_log(trt: Any) -> Any:
    """A `MessageLog` that the module's builder and runtime take."""
    return _logger_class(trt)()
