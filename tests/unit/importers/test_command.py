"""`blink-server import`, with a backend that comes through the plugin door."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from blink_server.config import load_model_config
from blink_server.errors import BlinkError
from blink_server.importers.command import import_command
from blink_server.plugins import DIRECTORIES_VARIABLE
from blink_server.testing.tiny_gguf import write_tiny_gguf
from blink_server.testing.tiny_huggingface import write_tiny_huggingface

PLUGIN = '''
from blink_server.backend import BuildResult
from blink_server.errors import Unavailable
from blink_server.hookspecs import hookimpl

class Copy:
    """Copies one tensor's bytes."""
    name = "copy"

    def build(self, checkpoint, directory, *, limits, options, progress):
        norm = checkpoint.tensor("model.norm.weight")
        up = checkpoint.tensor("model.layers.0.mlp.up_proj.weight")
        (directory / "norm.bin").write_bytes(norm.tobytes())
        progress("weights", 1.0)
        return BuildResult(
            files=["norm.bin"],
            config={
                "engine": {"name": "copy", "file": "norm.bin", **options},
                "limits": {"context_length": 128, "max_rows": 2, **limits},
            },
            graph_grid={"decode": [{"rows": 1}], "prefill": [{"sequences": 1, "tokens": 64}]},
            notes=[f"up_proj comes in {getattr(up, 'bits', 'float32')}"],
        )

    def check(self, version):
        return []

    def estimate(self, version):
        return (version.directory / "norm.bin").stat().st_size

    def runner_command(self, version, *, threads):
        raise Unavailable("only imports")

    async def connect(self, version, endpoint):
        raise Unavailable("only imports")

@hookimpl
def blink_backends():
    return [Copy()]
'''


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "plugins"
    directory.mkdir(mode=0o700)
    file = directory / "copy_backend.py"
    file.write_text(PLUGIN)
    file.chmod(0o600)
    monkeypatch.setenv(DIRECTORIES_VARIABLE, str(directory))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf").path


def run(
    file: Path,
    repository: Path,
    *arguments: str,
    name: str = "tiny",
    source: str | None = None,
) -> Result:
    source = source or ("--hf" if file.is_dir() else "--gguf")
    options = [source, str(file), "--name", name, "--model-repository", str(repository)]
    return CliRunner().invoke(import_command, [*options, "--backend", "copy", *arguments])


def failure(result: Result) -> str:
    assert isinstance(result.exception, BlinkError)
    return str(result.exception)


def test_it_says_what_it_wrote_and_how_to_serve_it(tmp_path: Path, file: Path) -> None:
    repository = tmp_path / "my models"
    result = run(file, repository, "--max-rows", "5", "--context-length", "256")

    assert result.exception is None
    directory = repository / "tiny" / "1"
    lines = result.stdout.splitlines()
    assert lines[0] == f"wrote {directory}"
    assert lines[-3] == "note: up_proj comes in 4"
    assert lines[-2].startswith("limits: context of 256 tokens of the model's 512")
    listed = {line.split()[0]: line.split()[1:] for line in lines[1:-3]}
    assert set(listed) == {path.name for path in directory.iterdir()}
    assert listed["norm.bin"] == ["256", "B"]
    assert lines[-1] == f"serve it: blink-server serve --model-repository '{repository}'"
    assert load_model_config(directory)["limits"]["max_rows"] == 5
    assert load_model_config(directory)["limits"]["context_length"] == 256


def test_versions_count_up_unless_one_is_asked_for(tmp_path: Path, file: Path) -> None:
    for arguments, version in [((), "1"), (("--version", "7"), "7"), ((), "8")]:
        result = run(file, tmp_path / "models", *arguments)
        assert result.stdout.startswith(f"wrote {tmp_path / 'models' / 'tiny' / version}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version", "0"],
        ["--max-rows", "0"],
        ["--max-rows", "100000000"],
        ["--context-length", "1"],
        ["--context-length", "100000000"],
    ],
)
def test_numbers_out_of_range_are_usage_errors(
    tmp_path: Path, file: Path, arguments: list[str]
) -> None:
    result = run(file, tmp_path / "models", *arguments)
    assert result.exit_code == 2
    assert f"Invalid value for '{arguments[0]}'" in result.stderr
    assert not (tmp_path / "models").exists()


def test_bad_names_and_backends_are_refused_before_any_work(tmp_path: Path) -> None:
    nowhere, repository = tmp_path / "nowhere.gguf", tmp_path / "models"
    assert "the model name '../x' must be letters" in failure(run(nowhere, repository, name="../x"))
    unknown = run(nowhere, repository, "--backend", "copies")
    assert "no plugin offers the backend 'copies'; did you mean 'copy'?" in failure(unknown)
    assert not repository.exists()


def test_files_that_cannot_be_imported_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    nowhere = tmp_path / "nowhere.gguf"
    assert failure(run(nowhere, repository)) == f"{nowhere}: cannot be read: " + (
        "No such file or directory"
    )
    foreign = tmp_path / "foreign.gguf"
    write_tiny_gguf(foreign, metadata={"general.architecture": "phi3"})
    assert "general.architecture: is 'phi3'" in failure(run(foreign, repository))
    assert not repository.exists()


def test_an_existing_version_is_refused(tmp_path: Path, file: Path) -> None:
    run(file, tmp_path / "models", "--version", "2")
    again = run(file, tmp_path / "models", "--version", "2")
    assert f"{tmp_path / 'models' / 'tiny' / '2'} exists already" in failure(again)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_huggingface(tmp_path / "qwen", "qwen2").directory


@pytest.mark.parametrize(
    ("arguments", "notes"),
    [
        ([], ["quantized 1 float matrices to int8: error 0.5", "up_proj comes in 8"]),
        (["--quantize", "int8"], ["quantized 1 float matrices to int8: ", "up_proj comes in 8"]),
        (["--quantize", "int4"], ["quantized 1 float matrices to int4 ", "up_proj comes in 4"]),
        (["--quantize", "none"], ["up_proj comes in float32"]),
        (["--compute", "fp32"], ["up_proj comes in float32"]),
        (["--compute", "int8"], ["quantized 1 float matrices to int8: ", "up_proj comes in 8"]),
        (
            ["--compute", "fp32", "--quantize", "int4"],
            ["quantized 1 float matrices to int4 ", "up_proj comes in 4"],
        ),
    ],
)
def test_float_matrices_are_quantized_as_asked_and_the_error_is_told(
    tmp_path: Path, directory: Path, arguments: list[str], notes: list[str]
) -> None:
    result = run(directory, tmp_path / "models", *arguments)
    assert result.exception is None
    told = [line.removeprefix("note: ") for line in result.stdout.splitlines() if "note: " in line]
    assert len(told) == len(notes)
    assert all(line.startswith(note) for line, note in zip(told, notes, strict=True))
    source = load_model_config(tmp_path / "models" / "tiny" / "1")["source"]
    assert source["file"] == "qwen/model.safetensors"
    bits = {"4": 4, "8": 8, "float32": None}[notes[-1].rpartition(" ")[2]]
    assert source.get("quantized_to_bits") == bits


@pytest.mark.parametrize("compute", [None, "int8", "fp32"])
def test_what_the_engine_is_to_compute_in_reaches_the_backend(
    tmp_path: Path, file: Path, compute: str | None
) -> None:
    arguments = [] if compute is None else ["--compute", compute]
    assert run(file, tmp_path / "models", *arguments).exception is None
    engine = load_model_config(tmp_path / "models" / "tiny" / "1")["engine"]
    assert engine.get("compute") == compute


def test_a_hubs_model_is_fetched_by_its_id(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None]] = []

    def fetched(hub_id: str, revision: str | None) -> tuple[Path, str]:
        asked.append((hub_id, revision))
        return directory, "c0ffee"

    monkeypatch.setattr("blink_server.importers.hub.fetch", fetched)
    monkeypatch.chdir(tmp_path)
    result = run(Path("org/tiny"), tmp_path / "models", "--revision", "v1", source="--hf")
    assert result.exception is None
    assert asked == [("org/tiny", "v1")]
    source = load_model_config(tmp_path / "models" / "tiny" / "1")["source"]
    assert (source["model"], source["revision"]) == ("org/tiny", "c0ffee")


def test_one_source_is_wanted_and_one_that_is_there(tmp_path: Path, directory: Path) -> None:
    common = ["--name", "x", "--backend", "copy", "--model-repository", str(tmp_path / "models")]
    neither = CliRunner().invoke(import_command, common)
    both = CliRunner().invoke(import_command, [*common, "--gguf", "a", "--hf", str(directory)])
    for result in (neither, both):
        assert result.exit_code == 2
        assert "give one of --gguf, --hf, --random and --from" in result.stderr
    nowhere = run(tmp_path / "nowhere", tmp_path / "models", source="--hf")
    assert f"{tmp_path / 'nowhere'} is neither a directory nor a hub's id" in failure(nowhere)
    revised = run(directory, tmp_path / "models", "--revision", "v1")
    assert "--revision is of a hub's model" in failure(revised)
    assert not (tmp_path / "models").exists()
