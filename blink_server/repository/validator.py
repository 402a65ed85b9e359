"""A version directory becomes a ModelVersion, or an InvalidModel that carries every problem."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from blink_server.aside import begin_aside
from blink_server.backend import ModelVersion
from blink_server.config import (
    CONFIG_FILE,
    GRAPH_GRID_FILE,
    check_graph_grid,
    check_model_config,
)
from blink_server.errors import InvalidModel, Problem
from blink_server.option_schemas import check_options
from blink_server.plugins import Plugins
from blink_server.repository.source import SourceModel
from blink_server.schema_problems import nearest
from blink_server.text.chat_template import ChatTemplate

CHECK_SECONDS = 60.0


def validate_version(
    model: SourceModel,
    version: int,
    plugins: Plugins,
    *,
    override: Mapping[str, Any] | None = None,
    seconds: float = CHECK_SECONDS,
) -> ModelVersion:
    """Check everything about one version of a model that can be checked without loading it.

    `override` goes over its config.json. `seconds`: what plugins may take for each of their checks.

    Its files and its names of plugins; when these are right, the options of these plugins; then
    that its tokenizer and chat template can be used, and what its backend has to say. Raises
    InvalidModel with every problem found.
    """
    directory = model.versions[version]
    defaults = model.settings.defaults
    config = check_model_config(directory, defaults=defaults, override=override)
    problems = [*config.problems, *_grid_problems(directory, config.document)]
    if config.document:
        problems += _plugin_problems(directory / CONFIG_FILE, config.document, plugins)
    if problems:
        raise InvalidModel(problems)
    document, problems = check_options(
        directory / CONFIG_FILE, config.document, plugins.option_schemas
    )
    if problems:
        raise InvalidModel(problems)
    found = ModelVersion(model.name, version, directory, document)
    problems = _unless_hung(found, _text_problems, plugins, seconds)
    problems += _unless_hung(found, _backend_problems, plugins, seconds)
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
    problems += _unknown(file, "tool_parser", config.get("tool_parser"), plugins.tool_parsers)
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
    kind = field.partition(".")[0].replace("_", " ")
    return [Problem(file, field, name, f"no plugin offers this {kind}; {nearest(name, known)}")]


def _unless_hung(
    version: ModelVersion,
    check: Callable[[ModelVersion, Plugins], list[Problem]],
    plugins: Plugins,
    seconds: float,
) -> list[Problem]:
    """What a check that calls plugins finds; one that hangs must not keep others from service."""
    try:
        return begin_aside(check, version, plugins).result(seconds)
    except TimeoutError:
        config = version.config
        whose = f"tokenizer {config['tokenizer']['name']!r} and backend {config['backend']!r}"
        expected = f"{whose} have not checked it after {seconds:g} s"
        return [Problem(version.directory, "", None, expected)]


def _text_problems(version: ModelVersion, plugins: Plugins) -> list[Problem]:
    problems: list[Problem] = []
    template = version.config["chat_template"]
    if template is not None:
        try:
            ChatTemplate.load(version.directory / template)
        except InvalidModel as error:
            problems += error.problems
    options = version.config["tokenizer"]
    try:
        tokenizer = plugins.tokenizers[options["name"]](version.directory, options)
    except InvalidModel as error:
        return problems + error.problems
    except Exception as error:
        return [*problems, _failed(version, f"tokenizer {options['name']!r}", error)]
    ids = {f"eos_token_ids[{i}]": each for i, each in enumerate(version.config["eos_token_ids"])}
    ids["bos_token_id"] = version.config["bos_token_id"]
    size = tokenizer.vocabulary_size
    expected = f"must be below the size of the tokenizer's vocabulary, {size}"
    file = version.directory / CONFIG_FILE
    return problems + [
        Problem(file, field, token_id, expected)
        for field, token_id in ids.items()
        if token_id is not None and token_id >= size
    ]


def _backend_problems(version: ModelVersion, plugins: Plugins) -> list[Problem]:
    name = version.config["backend"]
    try:
        return list(plugins.backends[name].check(version))
    except InvalidModel as error:
        return error.problems
    except Exception as error:
        return [_failed(version, f"backend {name!r}", error)]


def _failed(version: ModelVersion, what: str, error: Exception) -> Problem:
    # A stranger's plugin must not keep other models from being served.
    expected = f"{what} failed to check it: {type(error).__name__}: {error}"
    return Problem(version.directory, "", None, expected)
