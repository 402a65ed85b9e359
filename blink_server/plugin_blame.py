"""Whose code has failed: the plugin in whose modules an exception was raised or passed through."""

from __future__ import annotations

import traceback

_PLUGINS: dict[str, str] = {}  # top-level package of its modules -> plugin


def remember(plugin: str, module: str) -> None:
    """Modules of `module`'s top-level package are the plugin's, if they are not the server's."""
    package = module.partition(".")[0]
    if package != __name__.partition(".")[0]:
        _PLUGINS[package] = plugin


def plugin_blamed_for(error: BaseException) -> str | None:
    """The plugin whose code is nearest to where `error` was raised; None where none was running."""
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        found = _PLUGINS.get(package, found)
    return found


def of_plugin(error: BaseException) -> str:
    """` of plugin 'x'`, for a log line about a defect; empty where no plugin is to blame."""
    plugin = plugin_blamed_for(error)
    return "" if plugin is None else f" of plugin {plugin!r}"
