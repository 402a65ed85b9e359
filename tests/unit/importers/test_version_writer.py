"""A version is written whole or not at all, whoever else writes, and whatever goes wrong."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from blink_server.backend import Backend, BuildResult, ModelVersion
from blink_server.config import load_graph_grid, load_model_config
from blink_server.errors import InvalidModel, Problem
from blink_server.importers.failure import ModelImportError
from blink_server.importers.gguf import GgufCheckpoint, open_gguf
from blink_server.importers.version_writer import Destination, write_version
from blink_server.testing.tiny_gguf import CHAT_TEMPLATE, write_tiny_gguf


class Builder:
    """A backend whose engine file is text; only what an importer calls."""

    name = "builder"

    def __init__(self, during_build: Callable[[Path], None] = lambda directory: None) -> None:
        self.during_build = during_build
        self.limits: Mapping[str, int] = {}
        self.problems: list[Problem] = []

    def build(
        self,
        checkpoint: Any,
        directory: Path,
        *,
        limits: Mapping[str, int],
        options: Mapping[str, Any],
        progress: Callable[[str, float], None],
    ) -> BuildResult:
        self.limits = limits
        (directory / "engine.txt").write_text(str(len(checkpoint.tensor_names())))
        self.during_build(directory)
        progress("engine", 1.0)
        rows = limits.get("max_rows", 2)
        return BuildResult(
            files=["engine.txt"],
            config={
                "engine": {"name": "text", "file": "engine.txt"},
                "limits": {"context_length": 128, **limits, "max_rows": rows},
            },
            graph_grid={
                "decode": [{"rows": rows}],
                "prefill": [{"sequences": 1, "tokens": 64}],
            },
        )

    def check(self, version: ModelVersion) -> Sequence[Problem]:
        return self.problems

    def estimate(self, version: ModelVersion) -> int:
        limits = version.config["limits"]
        return int(limits["max_rows"] * limits["context_length"]) << 20


@pytest.fixture
def checkpoint(tmp_path: Path) -> GgufCheckpoint:
    return open_gguf(write_tiny_gguf(tmp_path / "tiny.gguf").path)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "models"


def write(
    checkpoint: GgufCheckpoint,
    destination: Destination,
    builder: Builder | None = None,
    **limits: int,
) -> Path:
    return write_version(
        checkpoint,
        cast(Backend, builder or Builder()),
        destination,
        limits=limits,
        options={},
        progress=lambda stage, fraction: None,
    ).directory


def tree(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def test_a_version_has_every_file_and_the_config_that_was_agreed(
    checkpoint: GgufCheckpoint, repository: Path
) -> None:
    directory = write(checkpoint, Destination(repository, "tiny"), max_rows=3)

    assert directory == repository / "tiny" / "1"
    assert tree(directory) == {
        "config.json",
        "graph_grid.json",
        "tokenizer.json",
        "chat_template.jinja",
        "engine.txt",
    }
    assert json.loads((directory / "config.json").read_text()) == {
        "backend": "builder",
        "engine": {"name": "text", "file": "engine.txt"},
        "limits": {"context_length": 128, "max_rows": 3},
        "tokenizer": {"name": "huggingface", "file": "tokenizer.json"},
        "chat_template": "chat_template.jinja",
        "sampler": "default",
        "eos_token_ids": [2],
        "bos_token_id": None,
        "default_sampling": {"temperature": 1.0, "top_p": 1.0},
        "source": dict(checkpoint.source),
    }
    assert load_graph_grid(directory)["decode"] == [{"rows": 3}]
    assert (directory / "tokenizer.json").read_text() == checkpoint.tokenizer_json
    assert (directory / "chat_template.jinja").read_text() == CHAT_TEMPLATE
    assert tree(repository) == {"tiny", "tiny/1"} | {f"tiny/1/{name}" for name in tree(directory)}


def test_a_model_without_a_template_has_no_template_file(tmp_path: Path, repository: Path) -> None:
    model = write_tiny_gguf(tmp_path / "m.gguf", metadata={"tokenizer.chat_template": None})
    directory = write(open_gguf(model.path), Destination(repository, "tiny"))
    assert load_model_config(directory)["chat_template"] is None
    assert "chat_template.jinja" not in tree(directory)


def test_newlines_of_a_template_are_kept_as_they_are(tmp_path: Path, repository: Path) -> None:
    template = "{{ messages }}\r\nä\n\r"
    model = write_tiny_gguf(tmp_path / "m.gguf", metadata={"tokenizer.chat_template": template})
    directory = write(open_gguf(model.path), Destination(repository, "tiny"))
    assert (directory / "chat_template.jinja").read_bytes() == template.encode()


def test_the_next_free_number_is_one_above_the_highest(
    checkpoint: GgufCheckpoint, repository: Path
) -> None:
    for name in ("3", "12", "12.bak", "007", "notes"):
        (repository / "tiny" / name).mkdir(parents=True)
    assert write(checkpoint, Destination(repository, "tiny")).name == "13"
    assert write(checkpoint, Destination(repository, "tiny", 5)).name == "5"


def test_a_version_that_exists_is_refused_and_left_alone(
    checkpoint: GgufCheckpoint, repository: Path
) -> None:
    directory = write(checkpoint, Destination(repository, "tiny", 4))
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    builder = Builder(lambda directory: pytest.fail("built although there is nothing to write"))
    with pytest.raises(ModelImportError, match=re.escape(f"{directory} exists already")):
        write(checkpoint, Destination(repository, "tiny", 4), builder)
    assert before == {path: path.stat().st_mtime_ns for path in directory.iterdir()}


def test_imports_at_the_same_time_get_a_number_each(
    checkpoint: GgufCheckpoint, repository: Path
) -> None:
    def import_another(directory: Path) -> None:
        write(checkpoint, Destination(repository, "tiny"))

    directory = write(checkpoint, Destination(repository, "tiny"), Builder(import_another))
    assert directory.name == "2"
    assert sorted(path.name for path in (repository / "tiny").iterdir()) == ["1", "2"]


def test_of_two_imports_of_one_number_the_later_is_refused(
    checkpoint: GgufCheckpoint, repository: Path
) -> None:
    destination = Destination(repository, "tiny", 1)

    def import_another(directory: Path) -> None:
        write(checkpoint, destination, max_rows=7)

    with pytest.raises(ModelImportError, match="exists already"):
        write(checkpoint, destination, Builder(import_another))
    assert load_model_config(repository / "tiny" / "1")["limits"]["max_rows"] == 7
    assert [path.name for path in repository.iterdir()] == ["tiny"]


@pytest.mark.parametrize("name", ["", ".hidden", "_private", "a/b", "..", "a b", "ä", "a\n"])
def test_names_that_are_no_models_are_refused(
    checkpoint: GgufCheckpoint, repository: Path, name: str
) -> None:
    with pytest.raises(ModelImportError, match="the model name"):
        write(checkpoint, Destination(repository, name))
    assert not repository.exists()


def test_a_longer_context_than_the_models_is_refused(
    checkpoint: GgufCheckpoint, repository: Path
) -> None:
    with pytest.raises(ModelImportError, match="513 is asked for; the model was made for 512"):
        write(checkpoint, Destination(repository, "tiny"), context_length=513)
    builder = Builder()
    write(checkpoint, Destination(repository, "tiny"), builder, context_length=512)
    assert builder.limits == {"context_length": 512}


@pytest.mark.parametrize(
    ("limit", "asked", "right"),
    [("max_rows", 100_000_000, "from 1 to 4096"), ("context_length", 1, "from 2 to 16777216")],
)
def test_a_limit_that_config_json_may_not_have_is_refused_before_the_build(
    checkpoint: GgufCheckpoint, repository: Path, limit: str, asked: int, right: str
) -> None:
    builder = Builder(lambda directory: pytest.fail("built with a limit that no version may have"))
    with pytest.raises(ModelImportError, match=f"{limit} is {asked}; must be {right}"):
        write(checkpoint, Destination(repository, "tiny"), builder, **{limit: asked})
    assert not repository.exists()


def test_the_limits_are_told_beside_what_the_model_allows_and_what_they_take(
    checkpoint: GgufCheckpoint, repository: Path
) -> None:
    def told(**limits: int) -> str:
        destination, builder = Destination(repository, "tiny"), cast(Backend, Builder())
        return write_version(
            checkpoint, builder, destination, limits=limits, options={}, progress=lambda *_: None
        ).limits

    assert told() == (
        "context of 128 tokens of the model's 512 (--context-length), 2 rows (--max-rows): "
        "256 MiB of the host's memory when all are full"
    )
    assert told(context_length=512, max_rows=4) == (
        "context of 512 tokens, 4 rows (--max-rows): 2048 MiB of the host's memory "
        "when all are full"
    )


def no_space(directory: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def forbidden(directory: Path) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory / "engine.txt"))


@pytest.mark.parametrize(
    ("failure", "message"),
    [(no_space, "models: No space left on device"), (forbidden, r"engine\.txt: Permission denied")],
)
def test_what_the_system_refuses_is_one_line_and_leaves_nothing(
    checkpoint: GgufCheckpoint, repository: Path, failure: Callable[[Path], None], message: str
) -> None:
    with pytest.raises(ModelImportError, match=message) as failed:
        write(checkpoint, Destination(repository, "tiny"), Builder(failure))
    assert "\n" not in str(failed.value)
    assert tree(repository) == set()


def test_a_repository_that_is_a_file_is_named(checkpoint: GgufCheckpoint, repository: Path) -> None:
    repository.write_text("")
    with pytest.raises(ModelImportError, match=r"models(/tiny)?: (File exists|Not a directory)"):
        write(checkpoint, Destination(repository, "tiny"))


def test_ctrl_c_during_the_build_leaves_nothing(
    checkpoint: GgufCheckpoint, repository: Path
) -> None:
    def interrupt(directory: Path) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        write(checkpoint, Destination(repository, "tiny"), Builder(interrupt))
    assert tree(repository) == set()


def test_a_version_that_the_server_would_refuse_is_not_published(
    checkpoint: GgufCheckpoint, repository: Path
) -> None:
    builder = Builder()
    builder.problems = [Problem(repository, "limits.max_rows", 2, "must be odd")]
    with pytest.raises(InvalidModel, match="must be odd"):
        write(checkpoint, Destination(repository, "tiny"), builder)

    empty = Builder(lambda directory: (directory / "engine.txt").unlink())
    with pytest.raises(InvalidModel, match=r"engine\.file.*names a file that is missing"):
        write(checkpoint, Destination(repository, "tiny"), empty)
    assert tree(repository) == set()


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_version_writer import Builder, Destination, open_gguf, write
def wait(directory):
    print("building", flush=True)
    sys.stdin.read()
write(open_gguf(Path(sys.argv[2])), Destination(Path(sys.argv[3]), "tiny"), Builder(wait))
"""


def test_a_killed_import_leaves_no_version_and_the_next_one_cleans_up(
    tmp_path: Path, checkpoint: GgufCheckpoint, repository: Path
) -> None:
    arguments = [str(Path(__file__).parent), str(checkpoint.path), str(repository)]
    killed = subprocess.Popen(
        [sys.executable, "-c", KILLED, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "building\n"
        killed.kill()
    leftovers = [path.name for path in repository.iterdir()]
    assert len(leftovers) == 1
    assert leftovers[0].startswith(".import-")

    write(checkpoint, Destination(repository, "tiny"))
    assert [path.name for path in repository.iterdir()] == ["tiny"]
    assert [path.name for path in (repository / "tiny").iterdir()] == ["1"]
