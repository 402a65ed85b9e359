"""`blink-server import`: a model's files become a version in a model repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from blink_server.importers.failure import ModelImportError
from blink_server.importers.gguf import open_gguf
from blink_server.importers.hf import open_huggingface
from blink_server.importers.hub import fetch, is_hub_id
from blink_server.importers.job import ImportJob, import_options


@click.command("import")
@click.option(
    "--gguf",
    "file",
    type=click.Path(path_type=Path),
    help="A GGUF file of Llama, Mistral, SmolLM2, Qwen 2 or Qwen 3.",
)
@click.option(
    "--hf",
    "model",
    metavar="DIRECTORY|ORG/NAME",
    help="A Hugging Face model of these families: its directory, or its id in a hub.",
)
@click.option("--revision", help="With an id: the branch, tag or commit; by default the newest.")
@click.option("--name", required=True, help="The model's name in the repository and the API.")
@import_options
def import_command(
    file: Path | None, model: str | None, revision: str | None, **options: Any
) -> None:
    """Import a model's files as a new version of a model.

    The version appears in the repository whole or, if the import fails or is stopped, not at all.
    """
    if (file is None) == (model is None):
        raise click.UsageError("give one of --gguf and --hf")
    job = ImportJob(**options)
    job.check()
    if file is not None:
        job.run(lambda progress: open_gguf(file, progress=progress))
    elif model is not None:
        _import_huggingface(job, model, revision)


def _import_huggingface(job: ImportJob, model: str, revision: str | None) -> None:
    directory, origin = Path(model), {}
    if not directory.exists() and is_hub_id(model):
        directory, commit = fetch(model, revision)
        origin = {"model": model, "revision": commit}
    elif not directory.exists():
        raise ModelImportError(f"{model} is neither a directory nor a hub's id like org/name")
    elif revision is not None:
        raise click.UsageError(f"--revision is of a hub's model; {model} is a directory")
    job.run(lambda progress: open_huggingface(directory, origin=origin, progress=progress))
