"""What a command that writes a version shows meanwhile, and says at the end."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from blink_server.importers.version_writer import WrittenVersion


class Stages:
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
def stages_shown(console: Console) -> Iterator[Stages]:
    """Bars on a terminal, nothing elsewhere."""
    # What a stage is called is its backend's, and no markup.
    stage = TextColumn("{task.description:<12}", markup=False)
    columns = (stage, BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield Stages(progress)


def print_result(written: WrittenVersion, summary: Sequence[str], repository: Path) -> None:
    """What was written, how exactly, and how to serve it, on standard output."""
    directory = written.directory
    click.echo(f"wrote {directory}")
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            name = path.relative_to(directory).as_posix()
            click.echo(f"  {name:<24} {_size(path.stat().st_size):>9}")
    for note in (*summary, *written.notes):
        click.echo(f"note: {note}")
    click.echo(f"limits: {written.limits}")
    click.echo(f"serve it: blink-server serve --model-repository {shlex.quote(str(repository))}")


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
