"""Registers plugins under their names, checks their hooks, asks each of them for its offers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pluggy import PluginManager, PluginValidationError

from blink_server import hookspecs
from blink_server.backend import Backend
from blink_server.plugin_blame import remember
from blink_server.plugin_errors import BrokenPlugin, PluginError, definition_of
from blink_server.plugin_files import import_failure
from blink_server.schema_problems import nearest

HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("blink_"))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plugin that has been found: `load` imports it. `version` is "" where only it knows."""

    name: str
    origin: str
    version: str
    load: Callable[[], object]


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """A plugin in use: where it came from, and the hooks that it implements."""

    name: str
    origin: str
    version: str
    hooks: tuple[str, ...]


class Door:
    """The plugins of one process; without `strict` those that are `broken` are left out."""

    def __init__(self, *, strict: bool) -> None:
        self._manager = PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._strict = strict
        self.loaded: dict[str, LoadedPlugin] = {}
        self.broken: list[BrokenPlugin] = []

    def admit(self, candidates: Iterable[Candidate]) -> None:
        """Load and register each. Raises BrokenPlugin if strict, PluginError for a shared name."""
        named: dict[str, Candidate] = {}
        for candidate in candidates:
            if (other := named.setdefault(candidate.name, candidate)) is not candidate:
                raise PluginError(
                    f"two plugins are named {candidate.name!r}: {other.origin} and "
                    f"{candidate.origin}; remove one"
                )
        for candidate in named.values():
            try:
                self._register(candidate)
            except BrokenPlugin as error:
                self._leave_out(error)

    def _register(self, candidate: Candidate) -> None:
        try:
            plugin = candidate.load()
        except PluginError:
            raise
        except (Exception, SystemExit) as error:
            raise import_failure(candidate.name, candidate.origin, error) from error
        hooks = tuple(self._hooks_of(candidate, plugin))
        try:
            self._manager.register(plugin, candidate.name)
        except (PluginValidationError, ValueError) as error:
            raise BrokenPlugin(candidate.name, candidate.origin, f"is refused: {error}") from error
        remember(candidate.name, _module_of(plugin))
        version = candidate.version or str(getattr(plugin, "__version__", ""))
        self.loaded[candidate.name] = LoadedPlugin(candidate.name, candidate.origin, version, hooks)

    def _hooks_of(self, candidate: Candidate, plugin: object) -> Iterator[str]:
        """The hooks that the plugin implements. Raises BrokenPlugin for one that it cannot."""

        def broken(function: Any, what: str) -> BrokenPlugin:
            place = definition_of(function)
            return BrokenPlugin(candidate.name, candidate.origin, f"{what} [{place}]")

        for attribute in dir(plugin):
            function = getattr(plugin, attribute, None)
            options = self._manager.parse_hookimpl_opts(plugin, attribute)
            if options is None:
                if attribute in HOOKS and inspect.isroutine(function):
                    raise broken(function, f"has {attribute} without @hookimpl before it")
                continue
            hook = options["specname"] or attribute
            if hook in HOOKS:
                assert callable(function)
                known = inspect.signature(getattr(hookspecs, hook)).parameters
                for argument in inspect.signature(function).parameters:
                    if argument not in known:
                        raise broken(
                            function,
                            f"has {hook} with an argument {argument!r}; "
                            f"it may take {', '.join(known) or 'none'}",
                        )
                yield hook
            elif not options["optionalhook"]:
                raise broken(function, f"implements an unknown hook {hook}; {nearest(hook, HOOKS)}")

    def _leave_out(self, error: BrokenPlugin) -> None:
        if self._strict:
            raise error
        self.broken.append(error)
        if self.loaded.pop(error.name, None) is not None:
            self._manager.unregister(name=error.name)

    def collect(self, ask: Callable[[Door], Any]) -> Any:
        """What `ask(self)` gives once no plugin is left that breaks a hook's contract."""
        while True:
            try:
                return ask(self)
            except BrokenPlugin as error:
                self._leave_out(error)

    def offers(self, hook: str, **arguments: Any) -> dict[str, Any]:
        """What all plugins offer through a hook, by name.

        Raises BrokenPlugin for a plugin that breaks the hook's contract, PluginError for two
        offers of one name.
        """
        offers: dict[str, Any] = {}
        givers: dict[str, str] = {}
        named = _named_backends if hook == "blink_backends" else _named_offers
        for giver, result in self.answers(hook, **arguments):
            try:
                found = named(hook, result)
            except TypeError as error:
                raise self.broken_by(giver, str(error)) from None
            for name, offer in found:
                if name in offers:
                    raise PluginError(
                        f"plugins {givers[name]!r} and {giver!r} both offer {name!r} "
                        f"through {hook}; remove one"
                    )
                offers[name], givers[name] = offer, giver
        return offers

    def answers(self, hook: str, **arguments: Any) -> Iterator[tuple[str, Any]]:
        """(plugin, what its hook returns), in the order of the plugins. Raises BrokenPlugin."""
        for name, function, takes in self.implementations(hook):
            try:
                yield name, function(*(arguments[each] for each in takes))
            except Exception as error:
                raise self.broken_by(
                    name,
                    f"failed in {hook}: {type(error).__name__}: {error} "
                    f"[{definition_of(function)}]",
                ) from error

    def implementations(self, hook: str) -> list[tuple[str, Callable[..., Any], Sequence[str]]]:
        """(plugin, its function, the arguments that it takes), in the order of the plugins."""
        found = getattr(self._manager.hook, hook).get_hookimpls()
        order = list(self.loaded)
        return [
            (each.plugin_name, each.function, each.argnames)
            for each in sorted(found, key=lambda each: order.index(each.plugin_name))
        ]

    def broken_by(self, name: str, what: str) -> BrokenPlugin:
        """What is said of a plugin in use that breaks a contract."""
        return BrokenPlugin(name, self.loaded[name].origin, what)


def _module_of(plugin: object) -> str:
    return plugin.__name__ if inspect.ismodule(plugin) else type(plugin).__module__


def _named_backends(hook: str, result: object) -> list[tuple[str, Any]]:
    if not isinstance(result, Sequence) or isinstance(result, str):
        raise TypeError(f"returned {result!r} from {hook}, not a list of backends")
    for backend in result:
        if not isinstance(backend, Backend):
            members = [name for name in dir(Backend) if not name.startswith("_")] + ["name"]
            missing = sorted(name for name in set(members) if not hasattr(backend, name))
            raise TypeError(
                f"returned {backend!r} from {hook}, which is not a Backend: "
                f"it lacks {', '.join(missing)}"
            )
    return [(backend.name, backend) for backend in result]


def _named_offers(hook: str, result: object) -> list[tuple[str, Any]]:
    if not isinstance(result, Mapping):
        raise TypeError(f"returned {result!r} from {hook}, not a dict by name")
    for name, offer in result.items():
        if not isinstance(name, str) or not callable(offer):
            raise TypeError(
                f"returned {name!r}: {offer!r} from {hook}; names are strings and offers can be "
                "called"
            )
    return list(result.items())
