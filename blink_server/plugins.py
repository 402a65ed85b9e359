"""The plugin door: loads every plugin once and collects what they offer, by name."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING

from blink_server.backend import Backend
from blink_server.hookspecs import (
    Connect,
    Factory,
    SamplerFactory,
    Schema,
    TokenizerLoader,
    ToolFormatFactory,
)
from blink_server.model_events import ModelStateChange
from blink_server.observers import Observers
from blink_server.option_schemas import read_schemas
from blink_server.plugin_choice import (
    DIRECTORIES_VARIABLE,
    PluginChoice,
    plugin_directories,
)
from blink_server.plugin_door import Candidate, Door, LoadedPlugin
from blink_server.plugin_errors import BrokenPlugin, PluginError
from blink_server.plugin_files import find_plugin_files, import_plugin_file, read_plugin_stamps
from blink_server.schema_problems import nearest

if TYPE_CHECKING:
    from blink_server.http.models import ModelDirectory
    from blink_server.importers.importer import Importer

log = logging.getLogger(__name__)

__all__ = [
    "DIRECTORIES_VARIABLE",
    "ENTRY_POINT_GROUP",
    "PluginChoice",
    "PluginError",
    "Plugins",
    "installed_as",
    "load_plugins",
    "plugin_directories",
]

MakeRoutes = Callable[["ModelDirectory"], Mapping[str, object]]

ENTRY_POINT_GROUP = "blink_server.plugins"

BUILT_IN = ("blink_server.builtin",)


@dataclass(slots=True)
class Plugins:
    """What all plugins together offer: each dict is from name to thing."""

    backends: dict[str, Backend]
    tokenizers: dict[str, TokenizerLoader]
    engines: dict[str, Factory]
    samplers: dict[str, SamplerFactory]
    transports: dict[str, Connect]
    tool_parsers: dict[str, ToolFormatFactory]
    importers: dict[str, Importer]
    option_schemas: dict[tuple[str, str], Schema]  # by field of config.json, and whose they are
    routes: list[tuple[str, MakeRoutes]]  # (plugin, its hook)
    observers: Observers
    loaded: list[LoadedPlugin]  # in the order in which they were registered
    broken: list[BrokenPlugin]  # left out

    @property
    def names(self) -> tuple[str, ...]:
        """Of the plugins in use, in their order."""
        return tuple(each.name for each in self.loaded)

    def state_changed(self, change: ModelStateChange) -> None:
        """Tell every plugin that observes models."""
        self.observers.model_state_changed(change)

    def refresh(self) -> None:
        """Read plugins anew whose files have changed, if the choice says so. May block."""


@dataclass(slots=True)
class ReloadingPlugins(Plugins):
    """Plugins that `refresh` reads again; the dicts stay, so that whoever has one sees it."""

    choice: PluginChoice
    extra: Mapping[str, object]
    stamps: object
    lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self) -> None:
        """See `Plugins.refresh`; any thread. Where the new files cannot be used, the old stay."""
        with self.lock:
            stamps = read_plugin_stamps(self.choice.directories)
            if stamps != self.stamps:
                self.stamps = stamps
                self._read_again()

    def _read_again(self) -> None:
        importlib.invalidate_caches()
        try:
            fresh = _load(self.choice, self.extra)
        except PluginError as error:
            log.error("plugins stay as they were: %s", error)
            return
        for each in fields(Plugins):
            held, new = getattr(self, each.name), getattr(fresh, each.name)
            if isinstance(held, dict):  # others read it meanwhile, and must miss nothing
                held.update(new)
                for name in held.keys() - new.keys():
                    del held[name]
            else:
                setattr(self, each.name, new)
        log.info("plugins were read again: %s", ", ".join(self.names))


def load_plugins(
    directories: Iterable[Path] | None = None,
    *,
    choice: PluginChoice | None = None,
    extra: Mapping[str, object] | None = None,
    warn: bool = True,
) -> Plugins:
    """Load the built-in, the installed and the directories' plugins.

    `choice` is by default the environment's, with `directories` instead of its own if given.
    `extra` holds further plugins (modules or objects with hook functions) by name. `warn`: log
    those that are left out. Raises PluginError: an unsafe directory, two plugins or two offers of
    one name, and, if the choice is strict, a plugin that cannot be imported or breaks a contract.
    """
    choice = choice or PluginChoice.of_environment()
    if directories is not None:
        choice = choice.with_directories(directories)
    if not choice.reload:
        return _load(choice, extra or {}, warn=warn)
    # A file that changes within a second keeps its time stamp in a cached bytecode.
    sys.dont_write_bytecode = True
    stamps = read_plugin_stamps(choice.directories)
    found = _load(choice, extra or {}, warn=warn)
    held = {each.name: getattr(found, each.name) for each in fields(Plugins)}
    return ReloadingPlugins(**held, choice=choice, extra=extra or {}, stamps=stamps)


def _load(choice: PluginChoice, extra: Mapping[str, object], *, warn: bool = True) -> Plugins:
    candidates = list(_candidates(choice, extra))
    known = {each.name for each in candidates}
    for name in sorted(choice.disabled - known):
        raise PluginError(f"no plugin {name!r} is there to be disabled; {nearest(name, known)}")
    door = Door(strict=choice.strict)
    door.admit(each for each in candidates if each.name not in choice.disabled)
    found: Plugins = door.collect(_collect)
    if warn:
        for broken in found.broken:
            log.warning("left out: %s", broken)
    return found


def _candidates(choice: PluginChoice, extra: Mapping[str, object]) -> Iterator[Candidate]:
    for module in BUILT_IN:
        load = partial(importlib.import_module, module)
        yield Candidate(module, "built in", _version_of_this(), load)
    for entry in _entry_points():
        release = entry.dist.version if entry.dist is not None else ""
        yield Candidate(entry.name, f"entry point {entry.value}", release, entry.load)
    for directory in choice.directories:
        for name, file in find_plugin_files(directory).items():
            yield Candidate(name, str(file), "", partial(import_plugin_file, name, file))
    for name, plugin in extra.items():
        yield Candidate(name, "given by the caller", "", partial(_same, plugin))


def _collect(door: Door) -> Plugins:
    engines = door.offers("blink_engines")
    samplers = door.offers("blink_samplers")
    transports = door.offers("blink_transports")
    backends = door.offers(
        "blink_backends", engines=engines, samplers=samplers, transports=transports
    )
    tokenizers = door.offers("blink_tokenizers")
    offered = {
        "backend_options": backends,
        "engine": engines,
        "tokenizer": tokenizers,
        "sampler_options": samplers,
    }
    return Plugins(
        backends=backends,
        tokenizers=tokenizers,
        engines=engines,
        samplers=samplers,
        transports=transports,
        tool_parsers=door.offers("blink_tool_parsers"),
        importers=door.offers("blink_importers"),
        option_schemas=_option_schemas(door, offered),
        routes=[
            (name, partial(_make_routes, function, takes))
            for name, function, takes in door.implementations("blink_routes")
        ],
        observers=Observers(door),
        loaded=list(door.loaded.values()),
        broken=door.broken,
    )


def _option_schemas(
    door: Door, offered: Mapping[str, Collection[str]]
) -> dict[tuple[str, str], Schema]:
    found: dict[tuple[str, str], Schema] = {}
    for plugin, schemas in read_schemas(door.answers("blink_option_schemas"), offered):
        if isinstance(schemas, str):
            raise door.broken_by(plugin, schemas)
        for key, schema in schemas.items():
            if key in found:
                raise PluginError("two plugins have a schema for the {} of {!r}".format(*key))
            found[key] = schema
    return found


def _make_routes(
    function: Callable[..., Mapping[str, object]], takes: Sequence[str], models: ModelDirectory
) -> Mapping[str, object]:
    return function(*(models,) if takes else ())


def _same(plugin: object) -> object:
    return plugin


def installed_as(module: str) -> list[str]:
    """The names under which a module is installed as a plugin."""
    return [entry.name for entry in _entry_points() if entry.module == module]


def _entry_points() -> list[EntryPoint]:
    found = entry_points(group=ENTRY_POINT_GROUP)
    # A distribution seen twice on sys.path (say, a checkout and its installation) counts once.
    return sorted({(entry.name, entry.value): entry for entry in found}.values())


def _version_of_this() -> str:
    try:
        return version("blink-server")
    except PackageNotFoundError:
        return ""
