"""The plugin door: loads every plugin once and collects what they offer, by name."""

from __future__ import annotations

import difflib
import importlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from pluggy import PluginManager, PluginValidationError

from blink_server import hookspecs
from blink_server.backend import Backend
from blink_server.hookspecs import Connect, Factory, TokenizerLoader
from blink_server.model_events import ModelStateChange
from blink_server.plugin_files import PluginError, find_plugin_files, import_plugin_file

log = logging.getLogger(__name__)

__all__ = [
    "DIRECTORIES_VARIABLE",
    "ENTRY_POINT_GROUP",
    "PluginError",
    "Plugins",
    "load_plugins",
    "plugin_directories",
]

ENTRY_POINT_GROUP = "blink_server.plugins"

DIRECTORIES_VARIABLE = "BLINK_PLUGIN_DIRS"
"""Environment variable with the plugin directories, separated like PATH: a server's way to have
its workers and runners load the plugins it has loaded itself."""

DEFAULT_DIRECTORY = "plugins"

BUILT_IN = ("blink_server.builtin",)


@dataclass(frozen=True, slots=True)
class Plugins:
    """What all plugins together offer: each mapping is from name to thing."""

    backends: Mapping[str, Backend]
    tokenizers: Mapping[str, TokenizerLoader]
    engines: Mapping[str, Factory]
    samplers: Mapping[str, Factory]
    transports: Mapping[str, Connect]
    tool_parsers: Mapping[str, Factory]
    state_changed: Callable[[ModelStateChange], None]  # tells all that observe models
    names: tuple[str, ...]  # of the plugins, in the order in which they were registered


def load_plugins(
    directories: Iterable[Path] | None = None, *, extra: Mapping[str, object] | None = None
) -> Plugins:
    """Load the built-in, the installed and the directories' plugins.

    `directories` is searched as given; None means those of `plugin_directories()`. `extra` holds
    further plugins (modules or objects with hook functions) by name. Raises PluginError: an unsafe
    directory, a plugin that cannot be imported, an unknown hook, two plugins or two offers of one
    name.
    """
    manager = PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    door = _Door(manager)
    for module in BUILT_IN:
        door.register(module, "built in", partial(importlib.import_module, module))
    for entry in _entry_points():
        door.register(entry.name, f"entry point {entry.value}", entry.load)
    for directory in plugin_directories() if directories is None else directories:
        for name, file in find_plugin_files(directory).items():
            door.register(name, str(file), partial(import_plugin_file, name, file))
    for name, plugin in (extra or {}).items():
        door.register(name, "given by the caller", partial(_same, plugin))
    door.check_hook_names()
    return door.collect()


def plugin_directories(given: Sequence[Path] = ()) -> list[Path]:
    """Those given, else those of BLINK_PLUGIN_DIRS if it is set, else `plugins` where it exists."""
    if given:
        return list(given)
    if (value := os.environ.get(DIRECTORIES_VARIABLE)) is not None:
        return [Path(part) for part in value.split(os.pathsep) if part]
    default = Path(DEFAULT_DIRECTORY)
    return [default] if default.is_dir() else []


def _same(plugin: object) -> object:
    return plugin


def _entry_points() -> list[EntryPoint]:
    found = entry_points(group=ENTRY_POINT_GROUP)
    # A distribution seen twice on sys.path (say, a checkout and its installation) counts once.
    return sorted({(entry.name, entry.value): entry for entry in found}.values())


class _Door:
    """Registers plugins under their names and asks each of them for its offers."""

    def __init__(self, manager: PluginManager) -> None:
        self._manager = manager
        self._origins: dict[str, str] = {}

    def register(self, name: str, origin: str, load: Callable[[], object]) -> None:
        if name in self._origins:
            raise PluginError(
                f"two plugins are named {name!r}: {self._origins[name]} and {origin}; remove one"
            )
        try:
            plugin = load()
        except PluginError:
            raise
        except Exception as error:
            raise PluginError(
                f"plugin {name!r} ({origin}) cannot be imported: {type(error).__name__}: {error}"
            ) from error
        try:
            self._manager.register(plugin, name)
        except (PluginValidationError, ValueError) as error:
            raise PluginError(f"plugin {name!r} ({origin}): {error}") from error
        self._origins[name] = origin

    def check_hook_names(self) -> None:
        known = [name for name in vars(hookspecs) if name.startswith("blink_")]
        for name, hook in vars(self._manager.hook).items():
            if name.startswith("_") or hook.has_spec():
                continue
            for implementation in hook.get_hookimpls():
                if not implementation.optionalhook:
                    raise PluginError(_unknown_hook(implementation.plugin_name, name, known))

    def collect(self) -> Plugins:
        engines = self._offers("blink_engines")
        samplers = self._offers("blink_samplers")
        transports = self._offers("blink_transports")
        backends = self._offers(
            "blink_backends", engines=engines, samplers=samplers, transports=transports
        )
        return Plugins(
            backends=backends,
            tokenizers=self._offers("blink_tokenizers"),
            engines=engines,
            samplers=samplers,
            transports=transports,
            tool_parsers=self._offers("blink_tool_parsers"),
            state_changed=self._tell_state_changed,
            names=tuple(self._origins),
        )

    def _tell_state_changed(self, change: ModelStateChange) -> None:
        for observer in self._manager.hook.blink_model_state_changed.get_hookimpls():
            try:
                observer.function(*((change,) if observer.argnames else ()))
            except Exception:
                log.exception("plugin %s: blink_model_state_changed failed", observer.plugin_name)

    def _offers(self, hook: str, **arguments: Any) -> dict[str, Any]:
        offers: dict[str, Any] = {}
        givers: dict[str, str] = {}
        for giver in self._origins:
            for name, offer in self._ask(giver, hook, arguments):
                if name in offers:
                    raise PluginError(
                        f"plugins {givers[name]!r} and {giver!r} both offer {name!r} "
                        f"through {hook}; remove one"
                    )
                offers[name], givers[name] = offer, giver
        return offers

    def _ask(self, giver: str, hook: str, arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
        others = [plugin for name, plugin in self._manager.list_name_plugin() if name != giver]
        try:
            results = self._manager.subset_hook_caller(hook, others)(**arguments)
        except Exception as error:
            raise PluginError(
                f"plugin {giver!r}: {hook} failed: {type(error).__name__}: {error}"
            ) from error
        named = _named_backends if hook == "blink_backends" else _named_callables
        return [offer for result in results for offer in named(giver, hook, result)]


def _named_backends(giver: str, hook: str, result: object) -> list[tuple[str, Any]]:
    if not isinstance(result, Sequence) or isinstance(result, str):
        raise PluginError(f"plugin {giver!r}: {hook} returned {result!r}, not a list of backends")
    for backend in result:
        if not isinstance(backend, Backend):
            members = [name for name in dir(Backend) if not name.startswith("_")] + ["name"]
            missing = sorted(name for name in set(members) if not hasattr(backend, name))
            raise PluginError(
                f"plugin {giver!r}: {hook} returned {backend!r}, which is not a Backend: "
                f"it lacks {', '.join(missing)}"
            )
    return [(backend.name, backend) for backend in result]


def _named_callables(giver: str, hook: str, result: object) -> list[tuple[str, Any]]:
    if not isinstance(result, Mapping):
        raise PluginError(f"plugin {giver!r}: {hook} returned {result!r}, not a dict by name")
    for name, offer in result.items():
        if not isinstance(name, str) or not callable(offer):
            raise PluginError(
                f"plugin {giver!r}: {hook} returned {name!r}: {offer!r}; "
                "names are strings and offers can be called"
            )
    return list(result.items())


def _unknown_hook(giver: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"hooks are {', '.join(sorted(known))}"
    return f"plugin {giver!r} implements an unknown hook {name}; {hint}"
