"""What was asked for by hand: in explicit mode the models to serve, and how to load each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blink_server.errors import InvalidRequest

EVERY_MODEL = "*"

_PLUGIN_FIELDS = (
    ("backend",),
    ("engine", "name"),
    ("tokenizer", "name"),
    ("sampler",),
    ("tool_parser",),
)


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """How a model was asked for: `config` goes over the config.json of each of its versions.

    `serial` grows with each request that must load again although no file has changed.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    serial: int = 0

    @property
    def mark(self) -> str:
        """What makes generations of it differ from those of other requests."""
        return f"+{self.serial}" if self.serial else ""


class LoadRequests:
    """The models that were asked for, for one thread at a time."""

    def __init__(self, models: Mapping[str, LoadRequest | None] | None = None) -> None:
        self._models: dict[str, LoadRequest | None] = dict(models or {})
        self._serials: dict[str, int] = {}

    def get(self, model: str) -> LoadRequest | None:
        """How the model was asked for; None where it was not."""
        return self._models.get(model, self._models.get(EVERY_MODEL))

    def ask(self, model: str, config: Mapping[str, Any] | None = None, *, force: bool) -> None:
        """Ask for a model; a `config` of None leaves the one asked for before.

        Raises InvalidRequest for a config that names plugins: those are the version's to choose.
        """
        for path in _PLUGIN_FIELDS:
            if _has(config or {}, path):
                name = ".".join(path)
                raise InvalidRequest(
                    f"config: {name}: plugins are chosen by the version's own config.json",
                    param="config",
                )
        before = self.get(model) or LoadRequest()
        serial = self._serials[model] = self._serials.get(model, 0) + force
        config = before.config if config is None else dict(config)
        self._models[model] = LoadRequest(config, serial)

    def drop(self, model: str) -> None:
        """Ask for it no more; should it be asked for again, it is loaded beside what still ends."""
        self._models[model] = None
        self._serials[model] = self._serials.get(model, 0) + 1

    def copy(self) -> LoadRequests:
        """As they are now, for reading."""
        return LoadRequests(self._models)


def _has(config: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    value: Any = config
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True
