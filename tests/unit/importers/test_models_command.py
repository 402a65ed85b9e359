"""`blink-server models pull`: fetch and import in one go, once."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from blink_server.cli import main
from blink_server.importers.job import ImportJob
from blink_server.importers.pull import MODELS, PackagedModel
from blink_server.importers.version_writer import SCRATCH_PREFIX
from blink_server.json_file import read_json
from blink_server.testing.tiny_gguf import write_tiny_gguf

MODEL = "smollm2-135m-instruct"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model in the cache, under the name and digest of the built-in one."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    (cache / "blink-server").mkdir(parents=True)
    file = write_tiny_gguf(cache / "blink-server" / "tiny.gguf").path
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setitem(MODELS, MODEL, PackagedModel("none==0", "x/tiny.gguf", digest))
    return file


def pull(repository: Path, *arguments: str, model: str = MODEL) -> Result:
    options = ["models", "pull", model, "--model-repository", str(repository)]
    return CliRunner().invoke(main, [*options, *arguments])


def test_the_model_is_imported_under_its_own_name(tmp_path: Path, file: Path) -> None:
    result = pull(tmp_path / "models", "--context-length", "128")
    assert result.exit_code == 0, result.output
    directory = tmp_path / "models" / MODEL / "1"
    assert result.stdout.startswith(f"wrote {directory}\n")
    config = read_json(directory / "config.json")
    assert config["source"]["file"] == file.name
    assert config["limits"]["context_length"] == 128
    assert "note: holds matrices: 15 as 8-bit blocks; 1 of them exactly, in the" in result.stdout
    assert {"model.onnx", "tokenizer.json"} <= {path.name for path in directory.iterdir()}


def test_what_is_there_is_not_imported_again(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull(tmp_path / "models", "--name", "mine")
    file.unlink()  # nor fetched

    def no_import(job: ImportJob, open_checkpoint: Any) -> None:
        pytest.fail("imported although a version of it is there")

    monkeypatch.setattr(ImportJob, "run", no_import)
    again = pull(tmp_path / "models", "--name", "mine")
    directory = tmp_path / "models" / "mine"
    assert (again.exit_code, again.stdout) == (0, f"{directory / '1'} is there already\n")
    assert [path.name for path in directory.iterdir()] == ["1"]


def test_a_further_version_comes_when_it_is_asked_for_or_the_file_is_another(
    tmp_path: Path, file: Path
) -> None:
    directory = tmp_path / "models" / MODEL
    for number, damage in (("1", "{"), ("2", '{"source": "a book"}'), ("3", '{"source": {}}')):
        (directory / number).mkdir(parents=True)
        (directory / number / "config.json").write_text(damage)
    assert pull(tmp_path / "models").stdout.startswith(f"wrote {directory / '4'}\n")
    asked = pull(tmp_path / "models", "--version", "7")
    assert asked.stdout.startswith(f"wrote {directory / '7'}\n")


def test_the_same_file_is_imported_again_for_another_compute(tmp_path: Path, file: Path) -> None:
    directory = tmp_path / "models" / MODEL
    assert pull(tmp_path / "models").stdout.startswith(f"wrote {directory / '1'}\n")
    exact = pull(tmp_path / "models", "--compute", "fp32")
    assert exact.stdout.startswith(f"wrote {directory / '2'}\n")
    assert read_json(directory / "2" / "config.json")["engine"]["compute"] == "fp32"
    again = pull(tmp_path / "models", "--compute", "fp32")
    assert again.stdout == f"{directory / '2'} is there already\n"
    first = pull(tmp_path / "models", "--compute", "int8")
    assert first.stdout == f"{directory / '1'} is there already\n"


def test_what_cannot_be_done_is_said_before_anything_is_fetched(tmp_path: Path, file: Path) -> None:
    file.unlink()
    unknown = pull(tmp_path / "models", model="gpt-5")
    assert unknown.exit_code == 2
    assert "'gpt-5' is not '" in unknown.stderr
    named = pull(tmp_path / "models", "--name", "../x")
    assert named.exit_code == 1
    assert "the model name '../x' must be letters" in named.stderr
    assert not (tmp_path / "models").exists()


def test_a_failed_import_leaves_nothing(tmp_path: Path, file: Path) -> None:
    refused = pull(tmp_path / "models", "--context-length", "100000")
    assert refused.exit_code == 1
    assert "a context length of 100000 is asked for; the model was made for 512" in refused.stderr
    left = [path for path in tmp_path.glob("models/**/*") if SCRATCH_PREFIX not in path.name]
    assert left == []
