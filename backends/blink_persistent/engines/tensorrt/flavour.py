"""The two TensorRTs: the full one, and TensorRT for RTX, by their Python modules."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from blink_server.errors import Unavailable

log = logging.getLogger(__name__)

_TOLD = 8  # the last errors, which explain a failure


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
    """A TensorRT logger: passes messages on, each once, errors to who must explain a failure."""

    trt: Any

    def __init__(self) -> None:
        self.trt.ILogger.__init__(self)
        self._errors: list[str] = []
        self._explaining = 0  # depth
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
        if level >= logging.ERROR and self._explaining:
            self._errors.append(msg)
        elif level:
            log.log(level, "TensorRT: %s", msg)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Errors inside are kept for `explanation`; those that it has not told are logged after."""
        self._explaining += 1
        try:
            yield
        finally:
            self._explaining -= 1
            if not self._explaining:
                self._log_all_but(0)

    def explanation(self) -> str:
        """The last errors inside `explaining`, which are forgotten by it; "no reason given" where
        there are none. Those before them are logged."""
        self._log_all_but(_TOLD)
        told = "; ".join(self._errors) or "no reason given"
        self._errors.clear()
        return told

    def _log_all_but(self, last: int) -> None:
        while len(self._errors) > last:
            log.error("TensorRT: %s", self._errors.pop(0))


@cache
def _logger_class(trt: Any) -> Any:
    return type("Logger", (MessageLog, trt.ILogger), {"trt": trt})


def message_log(trt: Any) -> Any:
    """A `MessageLog` that the module's builder and runtime take."""
    return _logger_class(trt)()
