"""What is wrong with a plugin, and where: the plugin's own file and line."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blink_server.errors import BlinkError


class PluginError(BlinkError):
    """Plugins are refused; the message names them and says why."""


class BrokenPlugin(PluginError):
    """One plugin cannot be used; without `--strict-plugins` the server goes on without it."""

    def __init__(self, name: str, origin: str, what: str) -> None:
        super().__init__(f"plugin {name!r} ({origin}) {what}")
        self.name = name
        self.origin = origin
        self.what = what


def place_of(error: BaseException) -> str | None:
    """`file:line` of the deepest line of the plugin's own code that an import of it has reached.

    None where none has been reached, as when the module is not there.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and not _is_the_door(frame.filename)
    ]
    if not frames:
        return None
    first = Path(frames[0].filename)
    home = first.parent if first.name == "__init__.py" else first
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(home)]
    return f"{own[-1].filename}:{own[-1].lineno}"


def definition_of(function: Callable[..., Any]) -> str:
    """`file:line` of a function, or its name where it has no source."""
    plain = inspect.unwrap(function)
    code = getattr(getattr(plain, "__func__", plain), "__code__", None)
    return repr(function) if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _is_the_door(file: str) -> bool:
    return Path(file).parent == Path(__file__).parent and Path(file).name.startswith("plugin")
