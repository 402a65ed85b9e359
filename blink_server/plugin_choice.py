"""Which plugins a process loads, and how: one choice for all processes of a server.

`serve` writes it into its environment, from which workers and runners read it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import click

from blink_server.plugin_errors import PluginError
from blink_server.plugin_files import find_plugin_files

log = logging.getLogger(__name__)

DIRECTORIES_VARIABLE = "BLINK_PLUGIN_DIRS"  # separated like PATH
DISABLED_VARIABLE = "BLINK_DISABLED_PLUGINS"  # separated by commas
STRICT_VARIABLE = "BLINK_STRICT_PLUGINS"  # 0 or 1
RELOAD_VARIABLE = "BLINK_RELOAD_PLUGINS"  # 0 or 1

DEFAULT_DIRECTORY = "plugins"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginChoice:
    """`strict`: a plugin that cannot be used ends the start, else it is left out with a warning.

    `reload`: files of plugin directories that change are read again for what is loaded later.
    """

    directories: tuple[Path, ...]
    disabled: frozenset[str] = frozenset()
    strict: bool = True
    reload: bool = False

    @classmethod
    def of_environment(cls) -> PluginChoice:
        """What the environment says; without BLINK_PLUGIN_DIRS `plugins`, where it exists."""
        disabled = os.environ.get(DISABLED_VARIABLE, "")
        return cls(
            directories=tuple(plugin_directories()),
            disabled=frozenset(filter(None, disabled.split(","))),
            strict=os.environ.get(STRICT_VARIABLE, "1") != "0",
            reload=os.environ.get(RELOAD_VARIABLE, "0") == "1",
        )

    def with_directories(self, directories: Iterable[Path]) -> PluginChoice:
        """The same with other directories."""
        return replace(self, directories=tuple(directories))

    def variables(self) -> Mapping[str, str]:
        """The environment that has a child process choose the same."""
        return {
            DIRECTORIES_VARIABLE: os.pathsep.join(
                str(each.absolute()) for each in self.directories
            ),
            DISABLED_VARIABLE: ",".join(sorted(self.disabled)),
            STRICT_VARIABLE: str(int(self.strict)),
            RELOAD_VARIABLE: str(int(self.reload)),
        }


def plugin_directories(given: Sequence[Path] = ()) -> list[Path]:
    """Those given, else those of BLINK_PLUGIN_DIRS if it is set, else `plugins` where it exists.

    What nobody has asked for does not keep a server from starting: where others could change what
    is in `plugins`, nothing of it is loaded, with a warning.
    """
    if given:
        return list(given)
    if (value := os.environ.get(DIRECTORIES_VARIABLE)) is not None:
        return [Path(part) for part in value.split(os.pathsep) if part]
    default = Path(DEFAULT_DIRECTORY)
    if not default.is_dir():
        return []
    try:
        find_plugin_files(default)
    except PluginError as error:
        log.warning("nothing of the folder %s is loaded: %s", default, error)
        return []
    return [default]


_OPTIONS = (
    click.option(
        "--plugin-dir",
        "plugin_dirs",
        multiple=True,
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="Plugin directory; repeatable. [default: plugins, if it exists]",
    ),
    click.option(
        "--disable-plugin",
        "disabled_plugins",
        multiple=True,
        metavar="NAME",
        help="Do not load this plugin; repeatable.",
    ),
    click.option(
        "--strict-plugins/--no-strict-plugins",
        "strict_plugins",
        default=None,
        help="Fail if a plugin cannot be used, or continue without it. [default: fail]",
    ),
)


def plugin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options above; it gets them as `plugin_choice`.

    What is not given on the command line is as the environment has it.
    """

    @wraps(command)
    def wrapped(
        *args: Any,
        plugin_dirs: tuple[Path, ...],
        disabled_plugins: tuple[str, ...],
        strict_plugins: bool | None,
        **others: Any,
    ) -> Any:
        around = PluginChoice.of_environment()
        choice = PluginChoice(
            directories=plugin_dirs or around.directories,
            disabled=around.disabled | frozenset(disabled_plugins),
            strict=around.strict if strict_plugins is None else strict_plugins,
            reload=around.reload,
        )
        return command(*args, plugin_choice=choice, **others)

    result: Callable[..., Any] = wrapped
    for option in reversed(_OPTIONS):
        result = option(result)
    return result
