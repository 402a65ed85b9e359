from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from blink_server.backend import SamplingParams
from blink_server.config import (
    ModelSettings,
    check_graph_grid,
    check_model_config,
    load_graph_grid,
    load_model_config,
    load_model_settings,
)
from blink_server.errors import InvalidModel, Problem
from blink_server.repository.policy import All, Latest, Specific
from blink_server.schemas import NAMES, load_schema
from blink_server.testing.tiny_repository import (
    TINY_CONFIG,
    TINY_GRID,
    write_json,
    write_tiny_version,
)


def config_problems(tmp_path: Path, **changes: Any) -> list[tuple[str, Any, str]]:
    """(field, value, expected) of every problem of a valid config.json with `changes`."""
    directory = write_tiny_version(tmp_path, **changes)
    return [(p.field, p.value, p.expected) for p in check_model_config(directory).problems]


def with_limits(**limits: Any) -> dict[str, Any]:
    return {"limits": {"context_length": 512, **limits}}


def test_fills_in_every_default(tmp_path: Path) -> None:
    directory = write_tiny_version(tmp_path)
    write_json(
        directory / "config.json",
        {"backend": "x", "limits": {"context_length": 64}, "eos_token_ids": []},
    )
    assert load_model_config(directory) == {
        "backend": "x",
        "backend_options": {},
        "limits": {
            "context_length": 64,
            "max_rows": 8,
            "max_prefill_tokens": 256,
            "prefill": "mixed",
            "slots": 4096,
            "max_queue": 4096,
            "grammar_mib": 16,
            "step_timeout_seconds": 30,
            "memory_fraction": 0.9,
        },
        "tokenizer": {"name": "huggingface", "file": "tokenizer.json"},
        "chat_template": None,
        "tool_parser": None,
        "deterministic": False,
        "sampler": "default",
        "sampler_options": {},
        "eos_token_ids": [],
        "bos_token_id": None,
        "default_sampling": {},
        "warmup": [],
        "source": {},
    }


def test_what_is_written_is_kept(tmp_path: Path) -> None:
    written = {
        "engine": {"name": "e", "file": "model.onnx", "threads": 3},
        "limits": {"context_length": 64, "slots": 512, "memory_fraction": 1},
        "tokenizer": {"file": "chat_template.jinja", "option": True},
        "default_sampling": {"temperature": 0.2},
        "source": {"anything": [1, {"goes": None}]},
    }
    config = load_model_config(write_tiny_version(tmp_path, **written))
    assert config["engine"] == written["engine"]
    assert config["limits"]["slots"] == 512
    assert config["tokenizer"] == {
        "name": "huggingface",
        "file": "chat_template.jinja",
        "option": True,
    }
    assert config["default_sampling"] == {"temperature": 0.2}
    assert config["source"] == written["source"]


def test_a_loaded_config_shares_nothing_with_the_schema(tmp_path: Path) -> None:
    directory = write_tiny_version(tmp_path)
    load_model_config(directory)["default_sampling"]["top_k"] = 3
    assert load_model_config(directory)["default_sampling"] == {}


@pytest.mark.parametrize(
    ("changes", "field", "value", "expected"),
    [
        ({"backend": 3}, "backend", 3, "must be a string"),
        ({"backend": ""}, "backend", "", "must not be empty"),
        (
            {"limits": []},
            "limits",
            [],
            "must be an object; its fields are context_length, cpu_threads, grammar_mib, "
            "max_prefill_tokens, max_queue, max_rows, memory_fraction, prefill, "
            "prefill_chunk, slots, step_timeout_seconds",
        ),
        ({"source": []}, "source", [], "must be an object"),
        ({"limits": {}}, "limits.context_length", None, "is missing"),
        (with_limits(max_rows=0), "limits.max_rows", 0, "must be at least 1"),
        (with_limits(max_rows=True), "limits.max_rows", True, "must be a whole number"),
        (with_limits(max_rows=8.0), "limits.max_rows", 8.0, "must be a whole number"),
        (with_limits(max_rows="8"), "limits.max_rows", "8", "must be a whole number"),
        (with_limits(slots=300), "limits.slots", 300, "must be a multiple of 256"),
        (with_limits(memory_fraction=0), "limits.memory_fraction", 0, "must be more than 0"),
        (with_limits(memory_fraction=1.5), "limits.memory_fraction", 1.5, "must be at most 1"),
        (
            with_limits(max_row=4),
            "limits.max_row",
            None,
            "is not a known field; did you mean 'max_rows'?",
        ),
        ({"chat_template": 1}, "chat_template", 1, "must be a string or null"),
        ({"eos_token_ids": 2}, "eos_token_ids", 2, "must be a list"),
        ({"eos_token_ids": [2, -1]}, "eos_token_ids[1]", -1, "must be at least 0"),
        ({"eos_token_ids": [2, 2]}, "eos_token_ids", [2, 2], "must not hold an element twice"),
        ({"default_sampling": {"min_p": 1}}, "default_sampling.min_p", 1, "must be less than 1"),
        ({"engine": {"file": "model.onnx"}}, "engine.name", None, "is missing"),
        ({"\x1b[31m": 1}, r"'\x1b[31m'", None, "is not a known field; known are backend,"),
    ],
)
def test_names_the_field_the_value_and_what_would_be_right(
    tmp_path: Path, changes: dict[str, Any], field: str, value: Any, expected: str
) -> None:
    [(found_field, found_value, found_expected)] = config_problems(tmp_path, **changes)
    assert (found_field, found_value) == (field, value)
    assert found_expected.startswith(expected)


def test_reports_all_problems_together(tmp_path: Path) -> None:
    directory = write_tiny_version(tmp_path)
    write_json(
        directory / "config.json",
        {
            "bakend": "x",
            "engine": {"name": "e", "file": "gone.onnx"},
            "limits": {"context_length": 0, "max_rows": 0},
            "eos_token_ids": [2],
        },
    )
    with pytest.raises(InvalidModel) as caught:
        load_model_config(directory)
    assert [(p.field, p.expected) for p in caught.value.problems] == [
        ("backend", "is missing"),
        ("bakend", "is not a known field; did you mean 'backend'?"),
        ("limits.context_length", "must be at least 2"),
        ("limits.max_rows", "must be at least 1"),
        ("engine.file", "names a file that is missing"),
    ]
    assert {p.file for p in caught.value.problems} == {directory / "config.json"}


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../2/model.onnx", "a/../../x", ".", "a\0b", "\ud800"]
)
@pytest.mark.parametrize("field", ["engine.file", "tokenizer.file", "chat_template"])
def test_file_names_stay_inside_the_version_directory(
    tmp_path: Path, field: str, name: str
) -> None:
    outer, _, inner = field.partition(".")
    changes = {outer: {"name": "n", inner: name} if inner else name}
    assert config_problems(tmp_path, **changes) == [
        (field, name, "must be a file's name relative to the version directory, without '..'")
    ]


def engine_file_problem(directory: Path) -> str:
    [problem] = check_model_config(directory).problems
    assert (problem.field, problem.value) == ("engine.file", "model.onnx")
    return problem.expected


def test_a_file_may_be_a_link_inside_the_version_directory(tmp_path: Path) -> None:
    directory = write_tiny_version(tmp_path)
    (directory / "model.onnx").rename(directory / "data")
    (directory / "model.onnx").symlink_to("data")
    assert check_model_config(directory).problems == []


def test_a_link_may_not_lead_out(tmp_path: Path) -> None:
    directory = write_tiny_version(tmp_path / "repository")
    (directory / "model.onnx").rename(tmp_path / "model.onnx")
    (directory / "model.onnx").symlink_to(tmp_path / "model.onnx")
    assert "leads out of its directory" in engine_file_problem(directory)


def test_config_json_itself_may_not_lead_out(tmp_path: Path) -> None:
    directory = write_tiny_version(tmp_path / "repository")
    (directory / "config.json").rename(tmp_path / "config.json")
    (directory / "config.json").symlink_to(tmp_path / "config.json")
    [problem] = check_model_config(directory).problems
    assert "leads out of its directory" in problem.expected


def test_a_version_directory_may_be_a_link(tmp_path: Path) -> None:
    directory = write_tiny_version(tmp_path / "store")
    link = tmp_path / "link"
    link.symlink_to(directory)
    assert check_model_config(link).problems == []


def test_files_must_be_there_regular_and_not_empty(tmp_path: Path) -> None:
    directory = write_tiny_version(tmp_path)
    file = directory / "model.onnx"
    file.write_bytes(b"")
    assert engine_file_problem(directory) == "names a file that is empty"
    file.unlink()
    assert engine_file_problem(directory) == "names a file that is missing"
    file.symlink_to("model.onnx")
    assert engine_file_problem(directory) == "names a file that is missing"
    file.unlink()
    file.mkdir()
    assert engine_file_problem(directory) == "must name a regular file"
    file.rmdir()
    os.mkfifo(file)
    assert engine_file_problem(directory) == "must name a regular file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_files_must_be_readable(tmp_path: Path) -> None:
    directory = write_tiny_version(tmp_path)
    (directory / "model.onnx").chmod(0)
    assert "Permission denied" in engine_file_problem(directory)


def test_a_name_too_long_for_a_file_is_a_problem(tmp_path: Path) -> None:
    [(field, _, expected)] = config_problems(tmp_path, chat_template="x" * 300)
    assert (field, expected) == (
        "chat_template",
        "names a file that cannot be read: File name too long",
    )


def test_defaults_of_the_model_go_beneath_config_json(tmp_path: Path) -> None:
    directory = write_tiny_version(tmp_path, default_sampling={"top_k": 5})
    defaults = {"limits": {"max_rows": 2, "context_length": 99}, "default_sampling": {"top_p": 0.5}}
    config = load_model_config(directory, defaults=defaults)
    assert config["limits"]["max_rows"] == 2
    assert config["limits"]["context_length"] == TINY_CONFIG["limits"]["context_length"]
    assert config["default_sampling"] == {"top_k": 5, "top_p": 0.5}


def test_a_model_without_model_json_serves_its_latest_version(tmp_path: Path) -> None:
    assert load_model_settings(tmp_path) == ModelSettings(Latest(1), (), {})


@pytest.mark.parametrize(
    ("written", "policy"),
    [
        ({}, Latest(1)),
        ({"latest": {}}, Latest(1)),
        ({"latest": {"num_versions": 3}}, Latest(3)),
        ({"all": {}}, All()),
        ({"specific": {"versions": [4, 2]}}, Specific(frozenset({2, 4}))),
    ],
)
def test_reads_version_policies(tmp_path: Path, written: dict[str, Any], policy: object) -> None:
    write_json(tmp_path / "model.json", {"version_policy": written} if written else {})
    assert load_model_settings(tmp_path).version_policy == policy


@pytest.mark.parametrize(
    ("document", "field", "expected"),
    [
        ([], "", "must be an object"),
        (
            {"version_policy": {}},
            "version_policy",
            "must have at least 1 of the fields all, latest, specific",
        ),
        (
            {"version_policy": {"all": {}, "latest": {}}},
            "version_policy",
            "must have at most 1 of the fields all, latest, specific",
        ),
        (
            {"version_policy": {"specific": {"versions": []}}},
            "version_policy.specific.versions",
            "must have at least 1 element",
        ),
        (
            {"version_policy": {"latest": {"num_versions": 0}}},
            "version_policy.latest.num_versions",
            "must be at least 1",
        ),
        (
            {"version_policy": {"latest": 0}},
            "version_policy.latest",
            "must be an object; its field is num_versions",
        ),
        (
            {"version_policy": {"all": True}},
            "version_policy.all",
            "must be an object, an empty one: {}",
        ),
        (
            {"version_polcy": {"all": {}}},
            "version_polcy",
            "is not a known field; did you mean 'version_policy'?",
        ),
        ({"aliases": ["a/b"]}, "aliases[0]", "must be a name: letters, digits"),
        ({"aliases": ["a\n"]}, "aliases[0]", "must be a name: letters, digits"),
        ({"defaults": {"limits": {"max_rows": 0}}}, "defaults.limits.max_rows", "must be at least"),
        ({"defaults": {"backend": "x"}}, "defaults.backend", "is not a known field"),
    ],
)
def test_says_what_is_wrong_in_model_json(
    tmp_path: Path, document: Any, field: str, expected: str
) -> None:
    write_json(tmp_path / "model.json", document)
    with pytest.raises(InvalidModel) as caught:
        load_model_settings(tmp_path)
    [problem] = caught.value.problems
    assert problem.field == field
    assert problem.expected.startswith(expected)


def test_loads_a_graph_grid(tmp_path: Path) -> None:
    assert load_graph_grid(write_tiny_version(tmp_path)) == TINY_GRID


def grid_problems(tmp_path: Path, **changes: Any) -> list[tuple[str, str]]:
    write_json(tmp_path / "graph_grid.json", {**TINY_GRID, **changes})
    return [(p.field, p.expected) for p in check_graph_grid(tmp_path).problems]


def test_graph_grid_lists_are_not_empty(tmp_path: Path) -> None:
    assert grid_problems(tmp_path, decode=[]) == [("decode", "must have at least 1 element")]


def test_graph_grid_is_required_whole(tmp_path: Path) -> None:
    write_json(tmp_path / "graph_grid.json", {"decode": [{"row": 1}]})
    assert [(p.field, p.expected) for p in check_graph_grid(tmp_path).problems] == [
        ("decode[0].row", "is not a known field; did you mean 'rows'?"),
        ("decode[0].rows", "is missing"),
        ("prefill", "is missing"),
    ]


@given(rows=st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_graph_grid_lists_grow_strictly(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int]
) -> None:
    problems = grid_problems(
        tmp_path_factory.mktemp("grid"), decode=[{"rows": each} for each in rows]
    )
    grows = rows == sorted(set(rows))
    assert (problems == []) == grows
    wrong = [i for i in range(1, len(rows)) if rows[i] <= rows[i - 1]]
    assert [field for field, _ in problems] == [f"decode[{i}]" for i in wrong]


def test_mixed_shapes_are_ordered_by_sequences_then_tokens_then_rows(tmp_path: Path) -> None:
    def shape(tokens: int, rows: int) -> dict[str, int]:
        return {"sequences": 2, "tokens": tokens, "rows": rows}

    assert grid_problems(tmp_path, mixed=[shape(16, 1), shape(16, 8), shape(32, 1)]) == []
    [(field, _)] = grid_problems(tmp_path, mixed=[shape(16, 8), shape(16, 1)])
    assert field == "mixed[1]"
    assert grid_problems(tmp_path, mixed=[]) == [("mixed", "must have at least 1 element")]


def test_prefill_shapes_are_ordered_by_sequences_then_tokens(tmp_path: Path) -> None:
    def shape(sequences: int, tokens: int) -> dict[str, int]:
        return {"sequences": sequences, "tokens": tokens}

    assert grid_problems(tmp_path, prefill=[shape(1, 64), shape(2, 16)]) == []
    [(field, _)] = grid_problems(tmp_path, prefill=[shape(2, 16), shape(1, 64)])
    assert field == "prefill[1]"


@pytest.mark.parametrize("name", NAMES)
def test_schemas_are_valid_and_describe_every_field(name: Any) -> None:
    schema = load_schema(name)
    Draft202012Validator.check_schema(schema)
    undescribed = [path for path, field in fields(schema) if "description" not in field]
    assert undescribed == []


def fields(schema: Any, path: str = "") -> list[tuple[str, Any]]:
    found = []
    for kind in ("properties", "$defs"):
        for name, field in schema.get(kind, {}).items():
            if kind == "properties":
                found.append((f"{path}.{name}", field))
            found += fields(field, f"{path}.{name}")
    if "items" in schema:
        found += fields(schema["items"], f"{path}[]")
    return found


def test_default_sampling_speaks_of_fields_that_exist() -> None:
    known = {each.name for each in dataclasses.fields(SamplingParams)}
    assert load_schema("model_config")["$defs"]["sampling"]["properties"].keys() <= known


def test_a_problem_reads_as_a_sentence(tmp_path: Path) -> None:
    directory = write_tiny_version(tmp_path, limits={"context_length": 1})
    [problem] = check_model_config(directory).problems
    file = directory / "config.json"
    assert problem == Problem(file, "limits.context_length", 1, "must be at least 2")
    assert str(problem) == f"{file}: limits.context_length: is 1; must be at least 2"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(sorted(load_schema("model_config")["properties"])) | st.text(),
                inner,
            )
        ),
    )
)
def test_no_document_whatever_breaks_the_loader(
    tmp_path_factory: pytest.TempPathFactory, document: Any
) -> None:
    directory = tmp_path_factory.mktemp("any")
    (directory / "config.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InvalidModel) as caught:  # at the least, its tokenizer file is missing
        load_model_config(directory)
    assert caught.value.problems
