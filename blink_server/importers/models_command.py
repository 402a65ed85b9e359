"""`blink-server models`: those that are served, and those that can be had by a name alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from blink_server.errors import InvalidModel
from blink_server.importers.gguf import open_gguf
from blink_server.importers.job import ImportJob, import_options
from blink_server.importers.pull import MODELS, pull
from blink_server.importers.version_writer import Destination
from blink_server.json_file import read_json
from blink_server.models_table import load_command, runtime_option, show_models, unload_command


@click.group("models", invoke_without_command=True)
@click.option("--watch", is_flag=True, help="Redraw the table every second until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@runtime_option
@click.pass_context
def models_group(ctx: click.Context, watch: bool, as_json: bool, runtime_dir: Path | None) -> None:
    """Show the models of a running server; load, unload or pull one."""
    if ctx.invoked_subcommand is None:
        show_models(runtime_dir, watch=watch, as_json=as_json)


models_group.add_command(load_command)
models_group.add_command(unload_command)


@models_group.command("pull")
@click.argument("model", type=click.Choice(list(MODELS)))
@click.option("--name", help="Name of the model in the repository and the API. [default: MODEL]")
@import_options
def pull_command(model: str, name: str | None, **options: Any) -> None:
    """Fetch MODEL, unless it is cached, and import it.

    Does nothing if a version of that name was already imported from the same file (and for the
    same --engine and --compute, if given), unless --version asks for another one.
    """
    job = ImportJob(name=name or model, **options)
    job.check()
    there = _imported(job.destination, MODELS[model].sha256, job.engine_options)
    if job.version is None and there:
        click.echo(f"{there} is there already")
        return
    click.echo(f"fetching {model}, unless it is in the cache", err=True)
    file = pull(model)
    job.run(lambda progress: open_gguf(file, progress=progress))


def _imported(
    destination: Destination, sha256: str, engine_options: Mapping[str, str]
) -> str | None:
    """The directory of a version that came from the file with this digest, for these options."""
    for config in sorted(destination.model_directory.glob("*/config.json")):
        try:
            document = read_json(config)
            found, engine = document["source"]["sha256"], dict(document["engine"])
        except (InvalidModel, LookupError, TypeError, ValueError):
            continue  # another model's, or damaged: that is for `check` to say
        if found == sha256 and engine_options.items() <= engine.items():
            return str(config.parent)
    return None
