"""`blink-server build`: a version for another engine, from a version that keeps its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from blink_server.backend import Backend, ModelVersion, SourceBackend
from blink_server.config import load_model_config
from blink_server.errors import BlinkError, InvalidModel
from blink_server.importers.failure import ModelImportError
from blink_server.importers.job import check_engine
from blink_server.importers.report import print_result, stages_shown
from blink_server.importers.version_writer import Destination, write_version
from blink_server.plugin_choice import PluginChoice, plugin_options
from blink_server.plugins import Plugins, load_plugins
from blink_server.repository.names import VERSION_RULE, parse_version
from blink_server.schema_problems import nearest
from blink_server.schemas import limit_bounds

_OF_THEIR_OWN = {"name": "engine", "target": "target"}  # fields of config.json's engine


def _settings(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, Any]:
    """NAME=VALUE pairs; a value that is JSON is what it says, any other one a string."""
    settings = {}
    for pair in given:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE")
        if name in _OF_THEIR_OWN:
            raise click.BadParameter(f"{pair!r}: use --{_OF_THEIR_OWN[name]}")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


@click.command("build")
@click.argument("model", metavar="MODEL[:VERSION]")
@click.option("--engine", required=True, help="Engine to build for, such as tensorrt.")
@click.option(
    "--target",
    help="GPU architecture to build for, such as sm_89. [default: this machine's]",
)
@click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_settings,
    help="Engine option, as under engine in config.json; repeatable.",
)
@click.option(
    "--version",
    type=click.IntRange(1, 10**18 - 1),
    help="Number of the new version. [default: one above the highest]",
)
@click.option(
    "--model-repository",
    "repository",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("model_repository"),
    show_default=True,
    help="Model repository directory.",
)
@click.option(
    "--max-rows",
    type=click.IntRange(*limit_bounds("max_rows")),
    help="Maximum number of requests decoded together. [default: the engine's]",
)
@click.option(
    "--context-length",
    type=click.IntRange(*limit_bounds("context_length")),
    help="Maximum tokens of prompt and answer together. [default: the engine's]",
)
@plugin_options
def build_command(
    model: str,
    engine: str,
    target: str | None,
    settings: dict[str, Any],
    version: int | None,
    repository: Path,
    max_rows: int | None,
    context_length: int | None,
    plugin_choice: PluginChoice,
) -> None:
    """Build a version for another engine from the newest version that has weights.

    Give MODEL:VERSION to build from another one. The result is a new version beside it, with the
    same tokenizer, template and configuration; it appears complete or, if the build fails or is
    stopped, not at all.
    """
    plugins = load_plugins(choice=plugin_choice)
    name, _, number = model.partition(":")
    destination = Destination(repository, name, version)
    destination.check()
    origin, backend, checkpoint = _open(repository / name, number, plugins)
    check_engine(backend, engine)
    asked = {"max_rows": max_rows, "context_length": context_length}
    options = {"name": engine, **settings} | ({"target": target} if target else {})
    with stages_shown(Console(stderr=True)) as stages:
        written = write_version(
            checkpoint,
            backend,
            destination,
            limits={limit: value for limit, value in asked.items() if value is not None},
            options=options,
            progress=stages.report,
            origin=origin,
        )
    print_result(written, [f"built of {origin.key}"], repository)


def _open(directory: Path, number: str, plugins: Plugins) -> tuple[ModelVersion, Backend, Any]:
    """The version to build of, its backend, and its weights.

    Raises InvalidModel, `ModelImportError` where no version keeps any: why not the newest.
    """
    if number and parse_version(number) is None:
        raise ModelImportError(f"the version {number!r} must be {VERSION_RULE}")
    found = [parse_version(path.name) for path in _entries(directory)]
    versions = (
        [int(number)] if number else sorted((v for v in found if v is not None), reverse=True)
    )
    why: BlinkError | None = None
    for version in versions:
        try:
            return _open_version(directory, version, plugins)
        except (InvalidModel, ModelImportError) as error:
            why = why or error
    if why is None:
        raise ModelImportError(f"{directory} has no version to build of")
    raise why


def _open_version(
    directory: Path, number: int, plugins: Plugins
) -> tuple[ModelVersion, Backend, Any]:
    """Raises InvalidModel, `ModelImportError` for a backend that is not there."""
    path = directory / str(number)
    if not path.is_dir():
        raise ModelImportError(f"{path} is not there")
    version = ModelVersion(directory.name, number, path, load_model_config(path))
    name = version.config["backend"]
    backend = plugins.backends.get(name)
    if backend is None:
        known = nearest(name, plugins.backends)
        raise ModelImportError(f"no plugin offers {version.key}'s backend {name!r}; {known}")
    if not isinstance(backend, SourceBackend):
        raise ModelImportError(f"the backend {name!r} of {version.key} gives no weights away")
    return version, backend, backend.checkpoint(version)


def _entries(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []
