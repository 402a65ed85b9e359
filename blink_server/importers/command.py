"""`blink-server import`: a model's files become a version in a model repository."""

from __future__ import annotations

from typing import Any

import click

from blink_server.importers.failure import ModelImportError
from blink_server.importers.job import ImportJob, import_options
from blink_server.schema_problems import nearest


@click.command("import")
@click.option(
    "--gguf",
    metavar="FILE",
    help="GGUF file of a Llama, Mistral, SmolLM2, Qwen 2 or Qwen 3 model.",
)
@click.option(
    "--hf",
    metavar="DIRECTORY|ORG/NAME",
    help="Hugging Face model of these families, Phi 3 or Phi 4: a directory or a hub id.",
)
@click.option(
    "--from",
    "other",
    nargs=2,
    metavar="IMPORTER SOURCE",
    help="Read SOURCE with the importer of this name; plugins may add importers.",
)
@click.option(
    "--random",
    metavar="MODEL",
    help="Random weights in the shape of a published model, for measuring speed: smollm2-135m, "
    "llama-3-8b, qwen3-32b, ...",
)
@click.option("--revision", help="Branch, tag or commit of a hub id. [default: newest]")
@click.option("--name", required=True, help="Name of the model in the repository and the API.")
@import_options
def import_command(
    gguf: str | None,
    hf: str | None,
    other: tuple[str, str] | None,
    random: str | None,
    revision: str | None,
    **options: Any,
) -> None:
    """Import a model as a new version in the repository.

    The version appears complete or, if the import fails or is stopped, not at all.
    """
    asked = [("gguf", gguf), ("hf", hf), ("random", random), other or ("", None)]
    given = [(importer, source) for importer, source in asked if source is not None]
    if len(given) != 1:
        raise click.UsageError("give one of --gguf, --hf, --random and --from")
    [(importer, source)] = given
    job = ImportJob(**options)
    job.check()
    open_source = job.plugins.importers.get(importer)
    if open_source is None:
        known = nearest(importer, job.plugins.importers)
        raise ModelImportError(f"no plugin offers the importer {importer!r}; {known}")
    job.run(lambda progress: open_source(source, revision=revision, progress=progress))
