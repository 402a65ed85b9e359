from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from blink_server import plugins as door
from blink_server.backend import ModelVersion
from blink_server.errors import InvalidModel, Problem
from blink_server.plugins import Plugins, load_plugins
from blink_server.repository.source import read_repositories
from blink_server.repository.validator import validate_version
from blink_server.testing.tiny_repository import (
    CheckOnlyBackend,
    CheckOnlyPlugin,
    write_json,
    write_tiny_version,
)


@pytest.fixture(autouse=True)
def no_installed_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "entry_points", lambda group: [])


@pytest.fixture
def plugins() -> Plugins:
    return load_plugins([], extra={"check_only": CheckOnlyPlugin()})


def validate(repository: Path, plugins: Plugins) -> ModelVersion:
    return validate_version(read_repositories([repository])["tiny"], 1, plugins)


def problems(repository: Path, plugins: Plugins) -> list[tuple[str, str, str]]:
    with pytest.raises(InvalidModel) as caught:
        validate(repository, plugins)
    return [(p.file.name, p.field, p.expected) for p in caught.value.problems]


def test_a_valid_version_has_its_whole_config(tmp_path: Path, plugins: Plugins) -> None:
    directory = write_tiny_version(tmp_path)
    version = validate(tmp_path, plugins)
    assert (version.key, version.directory) == ("tiny:1", directory)
    assert version.config["limits"]["slots"] == 4096


def test_defaults_of_the_model_apply(tmp_path: Path, plugins: Plugins) -> None:
    write_tiny_version(tmp_path)
    write_json(tmp_path / "tiny" / "model.json", {"defaults": {"limits": {"max_rows": 3}}})
    assert validate(tmp_path, plugins).config["limits"]["max_rows"] == 3


@pytest.mark.parametrize(
    "file", ["config.json", "graph_grid.json", "tokenizer.json", "chat_template.jinja"]
)
def test_each_missing_file_is_named(tmp_path: Path, plugins: Plugins, file: str) -> None:
    directory = write_tiny_version(tmp_path)
    (directory / file).unlink()
    [(named, field, expected)] = problems(tmp_path, plugins)
    assert "missing" in expected
    if file in ("config.json", "graph_grid.json"):
        assert named == file
    else:
        assert named == "config.json"
        assert field == {"tokenizer.json": "tokenizer.file"}.get(file, "chat_template")


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("config.json", "is not JSON at line 1:2"),
        ("graph_grid.json", "is not JSON at line 1:2"),
        ("tokenizer.json", "is not a tokenizer"),
        ("chat_template.jinja", "nonsense"),
    ],
)
def test_each_corrupt_file_is_named(
    tmp_path: Path, plugins: Plugins, file: str, expected: str
) -> None:
    directory = write_tiny_version(tmp_path)
    (directory / file).write_text("{% nonsense", encoding="utf-8")
    [(named, _, found)] = problems(tmp_path, plugins)
    assert named == file
    assert expected in found


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        (
            {"backend": "check_onyl"},
            "backend",
            "no plugin offers this backend; did you mean 'check_only'?",
        ),
        (
            {"tokenizer": {"name": "hugingface", "file": "tokenizer.json"}},
            "tokenizer.name",
            "no plugin offers this tokenizer; did you mean 'huggingface'?",
        ),
        (
            {"engine": {"name": "nothin"}},
            "engine.name",
            "no plugin offers this engine; did you mean 'nothing'?",
        ),
        (
            {"sampler": "nothin"},
            "sampler",
            "no plugin offers this sampler; did you mean 'nothing'?",
        ),
    ],
)
def test_an_unknown_plugin_name_is_refused(
    tmp_path: Path, plugins: Plugins, changes: dict[str, Any], field: str, expected: str
) -> None:
    write_tiny_version(tmp_path, **changes)
    assert problems(tmp_path, plugins) == [("config.json", field, expected)]


def test_problems_of_all_kinds_come_together(tmp_path: Path, plugins: Plugins) -> None:
    directory = write_tiny_version(
        tmp_path, backend="unknown", limits={"context_length": 512, "max_rows": 0}
    )
    (directory / "graph_grid.json").unlink()
    assert {(file, field) for file, field, _ in problems(tmp_path, plugins)} == {
        ("config.json", "backend"),
        ("config.json", "limits.max_rows"),
        ("graph_grid.json", ""),
    }


def test_a_version_without_an_engine_needs_no_grid(tmp_path: Path, plugins: Plugins) -> None:
    directory = write_tiny_version(tmp_path)
    write_json(
        directory / "config.json",
        {"backend": "check_only", "limits": {"context_length": 8}, "eos_token_ids": []},
    )
    (directory / "graph_grid.json").unlink()
    assert validate(tmp_path, plugins).config["chat_template"] is None


def test_token_ids_lie_in_the_vocabulary(tmp_path: Path, plugins: Plugins) -> None:
    write_tiny_version(tmp_path, eos_token_ids=[2, 100_000], bos_token_id=200_000)
    found = problems(tmp_path, plugins)
    assert [field for _, field, _ in found] == ["eos_token_ids[1]", "bos_token_id"]
    assert all("tokenizer's vocabulary" in expected for _, _, expected in found)


def refuse(version: ModelVersion) -> Sequence[Problem]:
    return [Problem(version.directory / "model.onnx", "", None, "is no model")]


def raise_invalid(version: ModelVersion) -> Sequence[Problem]:
    raise InvalidModel(list(refuse(version)))


def crash(version: ModelVersion) -> Sequence[Problem]:
    raise KeyError("ouch")


@pytest.mark.parametrize("check", [refuse, raise_invalid])
def test_the_backend_has_its_say(tmp_path: Path, check: Any) -> None:
    write_tiny_version(tmp_path)
    plugin = CheckOnlyPlugin(CheckOnlyBackend(check))
    assert problems(tmp_path, load_plugins([], extra={"check_only": plugin})) == [
        ("model.onnx", "", "is no model")
    ]


def test_a_backend_that_crashes_is_named(tmp_path: Path) -> None:
    write_tiny_version(tmp_path)
    plugin = CheckOnlyPlugin(CheckOnlyBackend(crash))
    assert problems(tmp_path, load_plugins([], extra={"check_only": plugin})) == [
        ("1", "", "backend 'check_only' failed to check it: KeyError: 'ouch'")
    ]


def test_the_backend_sees_only_what_is_otherwise_valid(tmp_path: Path) -> None:
    asked: list[ModelVersion] = []

    def remember(version: ModelVersion) -> Sequence[Problem]:
        asked.append(version)
        return ()

    directory = write_tiny_version(tmp_path)
    plugins = load_plugins([], extra={"check_only": CheckOnlyPlugin(CheckOnlyBackend(remember))})
    validate(tmp_path, plugins)
    (directory / "graph_grid.json").unlink()
    problems(tmp_path, plugins)
    assert [version.key for version in asked] == ["tiny:1"]


def test_a_check_that_hangs_is_named_and_left_behind(tmp_path: Path) -> None:
    release = threading.Event()

    def hang(version: ModelVersion) -> list[Problem]:
        release.wait()
        return []

    plugins = load_plugins([], extra={"check_only": CheckOnlyPlugin(CheckOnlyBackend(hang))})
    write_tiny_version(tmp_path)
    [model] = read_repositories([tmp_path], visible=lambda _: True).values()
    with pytest.raises(InvalidModel) as caught:
        validate_version(model, 1, plugins, seconds=0.05)
    release.set()
    [found] = caught.value.problems
    assert "backend 'check_only' have not checked it after 0.05 s" in str(found)
