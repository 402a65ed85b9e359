"""`blink-server models`: models that can be had by a name alone."""

from __future__ import annotations

from typing import Any

import click

from blink_server.errors import InvalidModel
from blink_server.importers.gguf import open_gguf
from blink_server.importers.job import ImportJob, import_options
from blink_server.importers.pull import MODELS, pull
from blink_server.importers.version_writer import Destination
from blink_server.json_file import read_json


@click.group("models")
def models_group() -> None:
    """Import a model by its name."""


@models_group.command("pull")
@click.argument("model", type=click.Choice(list(MODELS)))
@click.option("--name", help="The model's name in the repository and the API; MODEL by default.")
@import_options
def pull_command(model: str, name: str | None, **options: Any) -> None:
    """Fetch MODEL, unless it is in the cache, and import it.

    Does nothing where a version of that name was imported from the same file already, unless
    --version asks for a further one.
    """
    job = ImportJob(name=name or model, **options)
    job.check()
    if job.version is None and (there := _imported(job.destination, MODELS[model].sha256)):
        click.echo(f"{there} is there already")
        return
    click.echo(f"fetching {model}, unless it is in the cache", err=True)
    file = pull(model)
    job.run(lambda progress: open_gguf(file, progress=progress))


def _imported(destination: Destination, sha256: str) -> str | None:
    """The directory of a version that came from the file with this digest."""
    for config in sorted(destination.model_directory.glob("*/config.json")):
        try:
            found = read_json(config)["source"]["sha256"]
        except (InvalidModel, LookupError, TypeError):
            continue  # another model's, or damaged: that is for `check` to say
        if found == sha256:
            return str(config.parent)
    return None
