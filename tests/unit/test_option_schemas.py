"""Options that plugins define: refused by field before a version is loaded, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from blink_server.errors import InvalidModel
from blink_server.hookspecs import Schema, hookimpl
from blink_server.plugins import PluginError, Plugins, load_plugins
from blink_server.repository.source import read_repositories
from blink_server.repository.validator import validate_version
from blink_server.testing.tiny_repository import CheckOnlyPlugin, write_tiny_version

SCHEMAS: Mapping[str, Mapping[str, Schema]] = {
    "backend_options": {
        "check_only": {
            "required": ["url"],
            "additionalProperties": False,
            "properties": {
                "url": {"type": "string", "pattern": "^https?:"},
                "tries": {"type": "integer", "minimum": 1, "default": 3},
            },
        }
    },
    "engine": {
        "nothing": {
            "additionalProperties": False,
            "properties": {"depth": {"type": "integer", "default": 2}},
        }
    },
    "sampler_options": {"nothing": {"properties": {"tau": {"exclusiveMinimum": 0}}}},
}


class WithSchemas(CheckOnlyPlugin):
    def __init__(self, schemas: Any) -> None:
        super().__init__()
        self._schemas = schemas

    @hookimpl
    def blink_option_schemas(self) -> Any:
        return self._schemas


def plugins(schemas: Any = SCHEMAS) -> Plugins:
    return load_plugins([], extra={"mine": WithSchemas(schemas)})


def validated(repository: Path, plugins: Plugins, **config: Any) -> Mapping[str, Any]:
    write_tiny_version(repository, **config)
    return validate_version(read_repositories([repository])["tiny"], 1, plugins).config


def problems(repository: Path, plugins: Plugins, **config: Any) -> dict[str, str]:
    with pytest.raises(InvalidModel) as caught:
        validated(repository, plugins, **config)
    return {problem.field: problem.expected for problem in caught.value.problems}


def test_blink_option_schemas_fill_in_defaults(tmp_path: Path) -> None:
    config = validated(tmp_path, plugins(), backend_options={"url": "http://x"})
    assert config["backend_options"] == {"url": "http://x", "tries": 3}
    assert config["engine"] == {"name": "nothing", "file": "model.onnx", "depth": 2}


def test_every_option_that_is_wrong_is_named_by_its_field(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        plugins(),
        backend_options={"tries": 0, "urk": 1},
        engine={"name": "nothing", "file": "model.onnx", "depth": "deep"},
        sampler_options={"tau": 0},
        tokenizer={"flie": "x"},
    )
    assert found == {
        "backend_options.tries": "must be at least 1",
        "backend_options.url": "is missing",
        "backend_options.urk": "is not a known field; did you mean 'url'?",
        "engine.depth": "must be a whole number",
        "sampler_options.tau": "must be more than 0",
        "tokenizer.flie": "is not a known field; none is known",
    }


@pytest.mark.parametrize(
    ("rate", "refusal"),
    [
        (0.5, None),
        (1, None),
        (0.25, "must be at least 0.5"),
        (1.25, "must be less than 1.25"),
    ],
)
def test_bounds_may_have_decimals(tmp_path: Path, rate: float, refusal: str | None) -> None:
    bounded = {"type": "number", "minimum": 0.5, "exclusiveMaximum": 1.25}
    mine = plugins({"sampler_options": {"nothing": {"properties": {"rate": bounded}}}})
    given = {"sampler_options": {"rate": rate}}
    if refusal is None:
        assert validated(tmp_path, mine, **given)["sampler_options"] == {"rate": rate}
    else:
        assert problems(tmp_path, mine, **given) == {"sampler_options.rate": refusal}


def test_a_pattern_without_a_description_is_told_as_it_is(tmp_path: Path) -> None:
    found = problems(tmp_path, plugins(), backend_options={"url": "x"})
    assert "'^https?:'" in found["backend_options.url"]


def test_a_backend_and_a_sampler_without_a_schema_take_no_options(tmp_path: Path) -> None:
    found = problems(tmp_path, plugins({}), backend_options={"a": 1}, sampler_options={"b": 2})
    assert found == {
        "backend_options": "the backend 'check_only' takes no options",
        "sampler_options": "the sampler 'nothing' takes no options",
    }


def test_an_engine_without_a_schema_checks_its_options_itself(tmp_path: Path) -> None:
    engine = {"name": "nothing", "file": "model.onnx", "any": 1}
    assert validated(tmp_path, plugins({}), engine=engine)["engine"] == engine


def test_a_schema_may_take_the_file_itself(tmp_path: Path) -> None:
    schema = {"properties": {"file": {"const": "other"}}}
    found = problems(tmp_path, plugins({"engine": {"nothing": schema}}))
    assert found == {"engine.file": "must be other"}


@pytest.mark.parametrize(
    ("schemas", "message"),
    [
        (3, "not a dict by field"),
        ({"sampler": {}}, "option schemas for 'sampler'"),
        ({"engine": {"nothin": {}}}, "the engine of 'nothin': none is there"),
        ({"engine": {"nothing": {"type": "int"}}}, "no JSON Schema"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(schemas: Any, message: str) -> None:
    with pytest.raises(PluginError, match="plugin 'mine'") as caught:
        plugins(schemas)
    assert message in str(caught.value)
