"""`blink-server check`: validates whole repositories and prints every problem found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from blink_server.backend import ModelVersion
from blink_server.errors import InvalidModel, Problem
from blink_server.plugin_choice import PluginChoice, plugin_options
from blink_server.plugins import Plugins, load_plugins
from blink_server.repository.source import SourceModel, read_repositories
from blink_server.repository.validator import validate_version
from blink_server.tables import cell, printable, show, table


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """One model of a repository: each version on disk is either valid or has problems."""

    source: SourceModel
    valid: dict[int, ModelVersion]
    invalid: dict[int, list[Problem]]

    @property
    def problems(self) -> list[Problem]:
        """The model's own problems, then its versions'."""
        return [*self.source.problems, *(p for found in self.invalid.values() for p in found)]


def check_repositories(repositories: Sequence[Path], plugins: Plugins) -> list[CheckedModel]:
    """Validate every version of every model, wanted or not, in order of names.

    Raises BlinkError for a repository that cannot be read.
    """
    return [_check(model, plugins) for model in read_repositories(repositories).values()]


def _check(model: SourceModel, plugins: Plugins) -> CheckedModel:
    checked = CheckedModel(model, {}, {})
    for version in model.versions:
        try:
            checked.valid[version] = validate_version(model, version, plugins)
        except InvalidModel as error:
            checked.invalid[version] = error.problems
    return checked


@click.command("check")
@click.argument("directories", metavar="[DIR]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--model-repository",
    "repositories",
    type=click.Path(path_type=Path),
    multiple=True,
    show_default="model_repository",
    help="The same as DIR; repeatable.",
)
@plugin_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def check_command(
    ctx: click.Context,
    directories: tuple[Path, ...],
    repositories: tuple[Path, ...],
    plugin_choice: PluginChoice,
    as_json: bool,
) -> None:
    """Report what is wrong in the model repositories DIR... (model_repository if none is given).

    Each problem is printed with its file, field and value and what would be right. The exit status
    is 1 if there are any.
    """
    plugins = load_plugins(choice=plugin_choice)
    asked = (*directories, *repositories) or (Path("model_repository"),)
    models = check_repositories(asked, plugins)
    if as_json:
        click.echo(json.dumps(_as_json(models), indent=2))
    else:
        _print(asked, models)
    ctx.exit(1 if any(model.problems for model in models) else 0)


def _as_json(models: Sequence[CheckedModel]) -> dict[str, Any]:
    return {
        "ok": not any(model.problems for model in models),
        "models": [
            {
                "name": model.source.name,
                "directory": printable(model.source.directory),
                "problems": [_problem_as_json(problem) for problem in model.source.problems],
                "versions": [
                    {
                        "version": version,
                        "selected": version in model.source.wanted,
                        "problems": [
                            _problem_as_json(problem) for problem in model.invalid.get(version, [])
                        ],
                    }
                    for version in model.source.versions
                ],
            }
            for model in models
        ],
    }


def _problem_as_json(problem: Problem) -> dict[str, Any]:
    return {
        "file": printable(problem.file),
        "field": problem.field,
        "value": problem.value,
        "expected": problem.expected,
    }


def _print(repositories: Sequence[Path], models: Sequence[CheckedModel]) -> None:
    problems = [problem for model in models for problem in model.problems]
    for problem in problems:
        click.echo(printable(problem))
    if any(model.valid for model in models):
        show(_valid(models))
    places = ", ".join(map(printable, repositories))
    if not models:
        click.echo(f"{places}: no models")
    good = sum(len(model.valid) for model in models)
    count = f"{len(problems)} problem{'s' * (len(problems) != 1)}"
    click.echo(f"{places}: {good} valid version{'s' * (good != 1)}, {count}")


def _valid(models: Sequence[CheckedModel]) -> Table:
    shown = table(
        *("model", "version", "served", "backend", "engine", "context", "rows"),
        whole=("served", "context", "rows"),
    )
    for model in models:
        for number, version in model.valid.items():
            limits = version.config["limits"]
            values = (
                model.source.name,
                number,
                "yes" if number in model.source.wanted else "no",
                version.config["backend"],
                version.config.get("engine", {}).get("name", "-"),
                limits["context_length"],
                limits["max_rows"],
            )
            shown.add_row(*map(cell, values))
    return shown
