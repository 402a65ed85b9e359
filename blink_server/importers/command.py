"""`blink-server import`: a model file becomes a version in a model repository."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from blink_server.importers.failure import ModelImportError
from blink_server.importers.gguf import open_gguf
from blink_server.importers.version_writer import Destination, write_version
from blink_server.plugins import load_plugins
from blink_server.schema_problems import nearest


@click.command("import")
@click.option(
    "--gguf",
    "file",
    required=True,
    type=click.Path(path_type=Path),
    help="GGUF file of a Llama model.",
)
@click.option("--name", required=True, help="The model's name in the repository and the API.")
@click.option(
    "--version",
    type=click.IntRange(1, 10**18 - 1),
    help="The version's number; by default one above the highest there is.",
)
@click.option(
    "--model-repository",
    "repository",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("model_repository"),
    show_default=True,
    help="The repository's directory; made if there is none.",
)
@click.option(
    "--max-rows",
    type=click.IntRange(min=1),
    help="Requests that are decoded together; the backend's default if not given.",
)
@click.option(
    "--context-length",
    type=click.IntRange(min=2),
    help="Tokens of prompt and answer together; the backend's default if not given.",
)
@click.option(
    "--backend",
    "backend_name",
    default="blink_persistent",
    show_default=True,
    help="The plugin that builds and will serve the version.",
)
def import_command(
    file: Path,
    name: str,
    version: int | None,
    repository: Path,
    max_rows: int | None,
    context_length: int | None,
    backend_name: str,
) -> None:
    """Import a model file as a new version of a model.

    The version appears in the repository whole or, if the import fails or is stopped, not at all.
    """
    destination = Destination(repository, name, version)
    destination.check()
    backends = load_plugins().backends
    if backend_name not in backends:
        known = nearest(backend_name, backends)
        raise ModelImportError(f"no plugin offers the backend {backend_name!r}; {known}")
    asked = {"max_rows": max_rows, "context_length": context_length}
    limits = {limit: value for limit, value in asked.items() if value is not None}
    console = Console(stderr=True)
    with _stages(console) as stages:
        checkpoint = open_gguf(file, progress=stages.report)
        directory = write_version(
            checkpoint, backends[backend_name], destination, limits=limits, progress=stages.report
        )
    _print_result(directory, repository)


class _Stages:
    """One bar for each stage that reports, in the order of their first reports."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def report(self, stage: str, fraction: float) -> None:
        """Show that `fraction`, 0 to 1, of a stage is done; from any thread."""
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=1.0)
        self._progress.update(self._tasks[stage], completed=fraction)


@contextmanager
def _stages(console: Console) -> Iterator[_Stages]:
    columns = (TextColumn("{task.description:<12}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield _Stages(progress)


def _print_result(directory: Path, repository: Path) -> None:
    click.echo(f"wrote {directory}")
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            name = path.relative_to(directory).as_posix()
            click.echo(f"  {name:<24} {_size(path.stat().st_size):>9}")
    click.echo(f"serve it: blink-server serve --model-repository {shlex.quote(str(repository))}")


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
