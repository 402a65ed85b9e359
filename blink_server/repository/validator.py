"""A version directory becomes a ModelVersion, or an InvalidModel that carries every problem."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from blink_server.backend import ModelVersion
from blink_server.config import (
    CONFIG_FILE,
    GRAPH_GRID_FILE,
    check_graph_grid,
    check_model_config,
)
from blink_server.errors import InvalidModel, Problem
from blink_server.plugins import Plugins
from blink_server.repository.source import SourceModel
from blink_server.schema_problems import nearest


def validate_version(model: SourceModel, version: int, plugins: Plugins) -> ModelVersion:
    """Check everything about one version of a model that can be checked without loading it.

    Its files, its names of plugins and, when these are right, what its backend has to say. Raises
    InvalidModel with every problem found.
    """
    directory = model.versions[version]
    config = check_model_config(directory, defaults=model.settings.defaults)
    problems = [*config.problems, *_grid_problems(directory, config.document)]
    if config.document:
        problems += _plugin_problems(directory / CONFIG_FILE, config.document, plugins)
    if problems:
        raise InvalidModel(problems)
    found = ModelVersion(model.name, version, directory, config.document)
    problems = _backend_problems(found, plugins)
    if problems:
        raise InvalidModel(problems)
    return found


def _grid_problems(directory: Path, config: Mapping[str, Any]) -> Sequence[Problem]:
    # Only engines capture graphs; a grid that nobody reads must be right all the same.
    if "engine" not in config and not (directory / GRAPH_GRID_FILE).exists():
        return ()
    return check_graph_grid(directory).problems


def _plugin_problems(file: Path, config: Mapping[str, Any], plugins: Plugins) -> list[Problem]:
    problems = _unknown(file, "backend", config.get("backend"), plugins.backends)
    problems += _unknown(file, "tokenizer.name", _name(config, "tokenizer"), plugins.tokenizers)
    if "engine" in config:
        problems += _unknown(file, "engine.name", _name(config, "engine"), plugins.engines)
        problems += _unknown(file, "sampler", config.get("sampler"), plugins.samplers)
    return problems


def _name(config: Mapping[str, Any], field: str) -> object:
    value = config.get(field)
    return value.get("name") if isinstance(value, Mapping) else None


def _unknown(file: Path, field: str, name: object, known: Collection[str]) -> list[Problem]:
    if not isinstance(name, str) or name in known:  # another type is the schema's problem
        return []
    kind = field.partition(".")[0]
    return [Problem(file, field, name, f"no plugin offers this {kind}; {nearest(name, known)}")]


def _backend_problems(version: ModelVersion, plugins: Plugins) -> list[Problem]:
    name = version.config["backend"]
    try:
        return list(plugins.backends[name].check(version))
    except InvalidModel as error:
        return error.problems
    except Exception as error:  # a stranger's backend must not keep other models from being served
        expected = f"backend {name!r} failed to check it: {type(error).__name__}: {error}"
        return [Problem(version.directory, "", None, expected)]
