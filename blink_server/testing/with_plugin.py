"""A plugin under test beside what is built in and installed, and small versions that name it."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

from blink_server.backend import ModelVersion
from blink_server.plugins import PluginChoice, Plugins, installed_as, load_plugins
from blink_server.repository.source import read_repositories
from blink_server.repository.validator import validate_version
from blink_server.testing.tiny_repository import write_tiny_version


def plugins_with(module: ModuleType) -> Plugins:
    """All built-in and installed plugins and this one, which may be installed too.

    Raises PluginError for what is wrong with it.
    """
    choice = PluginChoice(directories=(), disabled=frozenset(installed_as(module.__name__)))
    return load_plugins(choice=choice, extra={module.__name__: module})


def version_with(module: ModuleType, repository: Path, **config: Any) -> ModelVersion:
    """Write a small version into an empty repository, and read it as a server does.

    `config` replaces fields of its config.json; a field that is None is left out. It has a
    tokenizer of 400 ids, a chat template, and a context of 64 tokens. Raises InvalidModel.
    """
    limits = {"context_length": 64, "max_rows": 8}
    fields = {"engine": None, "sampler": None, "limits": limits, **config}
    directory = write_tiny_version(repository, **fields)
    path = directory / "config.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    kept = {name: value for name, value in document.items() if value is not None}
    path.write_text(json.dumps(kept), encoding="utf-8")
    [model] = read_repositories([repository]).values()
    return validate_version(model, 1, plugins_with(module))
