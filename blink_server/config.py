"""The one loader of config.json, model.json and graph_grid.json.

Each function finds every problem of its file, or returns the document with defaults filled in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from blink_server.errors import InvalidModel, Problem
from blink_server.json_file import read_json
from blink_server.repository.policy import All, Latest, Specific, VersionPolicy
from blink_server.schema_problems import find_problems
from blink_server.schemas import SchemaName, fill_defaults

CONFIG_FILE = "config.json"
MODEL_FILE = "model.json"
GRAPH_GRID_FILE = "graph_grid.json"
_GRID_FIELDS = {
    "decode": ("rows",),
    "prefill": ("sequences", "tokens"),
    "mixed": ("sequences", "tokens", "rows"),
}

FILE_FIELDS = (("engine", "file"), ("tokenizer", "file"), ("chat_template",))
"""Where config.json names files of its version directory."""


_LEADS_OUT = "is a link that leads out of its directory; put the file itself there"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """A model.json, or what holds without one."""

    version_policy: VersionPolicy = field(default_factory=Latest)
    aliases: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)  # beneath each config.json
    unload_first: bool = False  # what serves may go before what follows it is loaded


@dataclass(frozen=True, slots=True)
class Checked:
    """A document with defaults filled in, and every problem found in it.

    With problems, `document` is only what could be read: {} where nothing could.
    """

    document: dict[str, Any]
    problems: Sequence[Problem]

    def require(self) -> dict[str, Any]:
        """The document. Raises InvalidModel if there is any problem."""
        if self.problems:
            raise InvalidModel(list(self.problems))
        return self.document


def load_model_config(
    directory: Path, *, defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The config.json of a version directory. Raises InvalidModel with every problem found."""
    return check_model_config(directory, defaults=defaults).require()


def load_graph_grid(directory: Path) -> dict[str, Any]:
    """The graph_grid.json of a version directory. Raises InvalidModel with every problem found.

    {"decode": [{"rows": int}, ...], "prefill": [{"sequences": int, "tokens": int}, ...]}, both
    lists not empty, and perhaps "mixed": [{"sequences": int, "tokens": int, "rows": int}, ...]; all
    strictly increasing.
    """
    return check_graph_grid(directory).require()


def load_model_settings(model_directory: Path) -> ModelSettings:
    """The model.json of a model, or the defaults where it has none.

    Raises InvalidModel with every problem found.
    """
    path = model_directory / MODEL_FILE
    if not path.is_symlink() and not path.exists():
        return ModelSettings()
    document = _check("model", path, {}).require()
    return ModelSettings(
        version_policy=_version_policy(document["version_policy"]),
        aliases=tuple(document["aliases"]),
        defaults=document["defaults"],
        unload_first=document["replace"] == "unload_first",
    )


def check_model_config(
    directory: Path,
    *,
    defaults: Mapping[str, Any] | None = None,
    override: Mapping[str, Any] | None = None,
) -> Checked:
    """Read config.json over `defaults` (of the model's model.json), and look at the files it names.

    `override` goes over it in turn.

    Each must be named relative to the directory, stay inside it, and be a readable regular file
    that is not empty.
    """
    path = directory / CONFIG_FILE
    checked = _check("model_config", path, defaults or {}, override or {})
    problems = list(checked.problems)
    for parts in FILE_FIELDS:
        name = _at(checked.document, parts)
        if isinstance(name, str) and name:
            problems += _file_problems(directory, path, ".".join(parts), name)
    return Checked(checked.document, problems)


def check_graph_grid(directory: Path) -> Checked:
    """Read graph_grid.json; its lists must grow strictly."""
    path = directory / GRAPH_GRID_FILE
    checked = _check("graph_grid", path, {})
    if checked.problems:
        return checked
    problems = [
        problem
        for phase, fields in _GRID_FIELDS.items()
        for problem in _order_problems(
            path,
            phase,
            [tuple(key[field] for field in fields) for key in checked.document.get(phase, ())],
        )
    ]
    return Checked(checked.document, problems)


def _check(
    schema: SchemaName,
    path: Path,
    defaults: Mapping[str, Any],
    override: Mapping[str, Any] = MappingProxyType({}),
) -> Checked:
    try:
        if _leads_out(path.parent, path):
            raise InvalidModel([Problem(path, "", None, _LEADS_OUT)])
        document = read_json(path)
    except InvalidModel as error:
        return Checked({}, error.problems)
    if isinstance(document, dict):
        document = _merged(_merged(defaults, document), override)
    problems = find_problems(schema, document, path)
    if not isinstance(document, dict):
        return Checked({}, problems)
    return Checked(fill_defaults(schema, document), problems)


def _merged(beneath: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = {**beneath, **above}
    for name, value in above.items():
        if isinstance(value, dict) and isinstance(beneath.get(name), Mapping):
            result[name] = _merged(beneath[name], value)
    return result


def _at(document: Mapping[str, Any], parts: Sequence[str]) -> Any:
    value: Any = document
    for part in parts:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _file_problems(directory: Path, config: Path, field_name: str, name: str) -> list[Problem]:
    def problem(expected: str) -> list[Problem]:
        return [Problem(config, field_name, name, expected)]

    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or not name.isprintable():
        return problem("must be a file's name relative to the version directory, without '..'")
    path = directory / name
    try:
        if _leads_out(directory, path):
            return problem(_LEADS_OUT)
        if not path.exists():
            return problem("names a file that is missing")
        if not path.is_file():
            return problem("must name a regular file")
        with path.open("rb") as file:
            if not file.read(1):
                return problem("names a file that is empty")
    except OSError as error:
        return problem(f"names a file that cannot be read: {error.strerror}")
    return []


def _leads_out(directory: Path, path: Path) -> bool:
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(directory))


def _order_problems(path: Path, field_name: str, keys: Sequence[tuple[int, ...]]) -> list[Problem]:
    return [
        Problem(
            path,
            f"{field_name}[{index}]",
            None,
            f"does not come after {field_name}[{index - 1}]: shapes must be unique and grow",
        )
        for index in range(1, len(keys))
        if keys[index] <= keys[index - 1]
    ]


def _version_policy(document: Mapping[str, Any]) -> VersionPolicy:
    match document:
        case {"latest": latest}:
            return Latest(latest["num_versions"])
        case {"specific": specific}:
            return Specific(frozenset(specific["versions"]))
        case _:
            return All()
