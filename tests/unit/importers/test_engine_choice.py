"""`blink-server import --engine`: what each engine takes, and whole versions for `cuda`."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner, Result
from safetensors import safe_open

from blink_persistent.engines.cuda import weight_file
from blink_persistent.gpu.presence import gpus
from blink_server.check import check_command
from blink_server.config import load_graph_grid, load_model_config
from blink_server.errors import BlinkError
from blink_server.importers.command import import_command
from blink_server.importers.models_command import models_group
from blink_server.testing.tiny_gguf import write_tiny_gguf
from blink_server.testing.tiny_huggingface import write_tiny_huggingface

LACKS = "this machine cannot serve it: "


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture(params=["hf", "gguf"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, dict[str, Any]]:
    """An importer's option, what it reads, and the weights that are in there."""
    if request.param == "hf":
        hf = write_tiny_huggingface(tmp_path / "hf", "qwen3", dtype="BF16")
        return "--hf", hf.directory, dict(hf.weights)
    gguf = write_tiny_gguf(tmp_path / "m.gguf")
    return "--gguf", gguf.path, dict(gguf.weights)


def run(repository: Path, *arguments: str) -> Result:
    options = ["--name", "tiny", "--model-repository", str(repository)]
    return CliRunner().invoke(import_command, [*options, *arguments])


def failure(result: Result) -> str:
    assert isinstance(result.exception, BlinkError)
    return str(result.exception)


def test_a_version_for_a_gpu_is_written_whole(
    repository: Path, source: tuple[str, Path, dict[str, npt.NDArray[np.float32]]]
) -> None:
    option, path, weights = source
    result = run(repository, option, str(path), "--engine", "cuda", "--max-rows", "16")
    assert result.exception is None, result.output
    directory = repository / "tiny" / "1"
    assert {file.name for file in directory.iterdir()} == {
        *("config.json", "graph_grid.json", "model.safetensors"),
        *("tokenizer.json", "chat_template.jinja"),
    }
    config = load_model_config(directory)
    assert config["engine"] == {
        **{"name": "cuda", "file": "model.safetensors", "dtype": "bfloat16"}
    }
    assert config["limits"]["max_rows"] == 16
    assert load_graph_grid(directory)["decode"][-1] == {"rows": 16}
    assert "quantized_to_bits" not in config["source"]
    told = re.search(
        r"at least (\d+) MiB of the GPU's memory, and (\d+) MiB of the host's memory\n",
        result.output,
    )
    assert told is not None
    assert int(told[1]) > 1024, "a runtime's, and KV for one request"
    assert int(told[2]) > 2048, "of processes on the host"
    with safe_open(directory / "model.safetensors", framework="np") as file:
        for name, expected in weights.items():
            found = file.get_tensor(name).astype(np.float32)
            np.testing.assert_allclose(found, expected, rtol=2**-8, atol=1e-7)


def test_neither_pytorch_nor_cuda_is_imported(
    repository: Path, monkeypatch: pytest.MonkeyPatch, source: tuple[str, Path, Any]
) -> None:
    for name in ("torch", "triton", "cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    assert run(repository, source[0], str(source[1]), "--engine", "cuda").exception is None


@pytest.mark.skipif(gpus()[0] > 0, reason="this machine has a GPU")
def test_the_gpu_is_all_that_is_missing_and_is_named(
    repository: Path, source: tuple[str, Path, Any]
) -> None:
    told = run(repository, source[0], str(source[1]), "--engine", "cuda").stdout
    checked = CliRunner().invoke(check_command, [str(repository), "--json"])
    assert checked.exit_code == 1
    (version,) = json.loads(checked.stdout)["models"][0]["versions"]
    (problem,) = version["problems"]
    assert (problem["field"], problem["value"]) == ("engine.name", "cuda")
    assert f"note: {LACKS}{problem['expected']}\n" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "cudo"], "no plugin offers the engine 'cudo'; did you mean 'cuda'?"),
        (["--engine", "x"], "no plugin offers the engine 'x'; known are cuda, onnx_cpu, scripted"),
        (
            ["--engine", "cuda", "--quantize", "int4"],
            "--quantize int4 is nothing that the engine 'cuda' takes",
        ),
        (
            ["--engine", "cuda", "--compute", "int8"],
            "--compute int8 is nothing that the engine 'cuda' takes",
        ),
        (["--engine", "scripted"], "it builds no models"),
    ],
)
def test_what_an_engine_does_not_take_is_refused_by_name(
    repository: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    file = write_tiny_gguf(tmp_path / "m.gguf").path
    assert message in failure(run(repository, "--gguf", str(file), *arguments))
    assert not repository.exists() or list(repository.iterdir()) == []


def test_a_backend_without_engines_lets_none_be_chosen(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = Path(__file__).parents[3] / "plugins"
    file = write_tiny_gguf(tmp_path / "m.gguf").path
    arguments = ["--gguf", str(file), "--engine", "cuda", "--backend", "echo"]
    refused = run(repository, *arguments, "--plugin-dir", str(plugins))
    assert "the backend 'echo' has no engines to choose" in failure(refused)


def test_the_engine_of_the_cpu_is_the_one_that_nobody_has_to_name(
    repository: Path, tmp_path: Path
) -> None:
    file = write_tiny_gguf(tmp_path / "m.gguf").path
    for arguments in ([], ["--engine", "onnx_cpu"]):
        assert run(repository, "--gguf", str(file), *arguments).exception is None
    first, second = (load_model_config(repository / "tiny" / n)["engine"] for n in "12")
    assert first == second
    assert first["name"] == "onnx_cpu"


def test_a_disk_that_runs_full_leaves_nothing(
    repository: Path, source: tuple[str, Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = weight_file._parts

    def until_full(tensor: Any) -> Iterator[Any]:
        if len(tensor.shape) == 1:  # some of the matrices are written by then
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        yield from whole(tensor)

    monkeypatch.setattr(weight_file, "_parts", until_full)
    refused = run(repository, source[0], str(source[1]), "--engine", "cuda")
    assert failure(refused) == f"{repository}: No space left on device"
    assert list(repository.iterdir()) == []


def test_random_weights_by_a_models_name(repository: Path) -> None:
    assert run(repository, "--random", "qwen3-32b", "--engine", "cuda").exception is None
    directory = repository / "tiny" / "1"
    config = load_model_config(directory)
    assert config["engine"]["model"] == config["source"]["model"] == "qwen3-32b"
    assert config["limits"]["context_length"] == 8192
    assert not (directory / "model.safetensors").exists()
    unknown = run(repository, "--random", "qwen3-32", "--engine", "cuda")
    assert "did you mean 'qwen3-32b'?" in failure(unknown)


def test_a_model_is_pulled_for_an_engine_once(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = "smollm2-135m-instruct"
    file = write_tiny_gguf(tmp_path / "m.gguf").path
    module = "blink_server.importers.models_command"
    monkeypatch.setattr(f"{module}.pull", lambda name: file)

    def pull(*arguments: str) -> str:
        told = CliRunner().invoke(
            models_group, ["pull", model, "--model-repository", str(repository), *arguments]
        )
        assert told.exception is None, told.output
        digest = load_model_config(repository / model / "1")["source"]["sha256"]
        known = type("Known", (), {"sha256": digest})
        monkeypatch.setattr(f"{module}.MODELS", {model: known})
        return told.stdout

    assert pull().startswith(f"wrote {repository / model / '1'}\n")
    for place in ("wrote {}\n", "{} is there already\n"):
        assert pull("--engine", "cuda").startswith(place.format(repository / model / "2"))
