"""Model repositories for tests: version directories that are valid, small and made in no time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blink_server.backend import BuildResult, Endpoint, ModelVersion, Session
from blink_server.errors import Problem, Unavailable
from blink_server.hookspecs import Factory, hookimpl
from blink_server.testing.tiny_tokenizer import byte_level_tokenizer

TINY_CONFIG: Mapping[str, Any] = {
    "backend": "check_only",
    "engine": {"name": "nothing", "file": "model.onnx"},
    "limits": {"context_length": 512},
    "sampler": "nothing",
    "chat_template": "chat_template.jinja",
    "eos_token_ids": [2],
}

TINY_GRID: Mapping[str, Any] = {
    "decode": [{"rows": 1}, {"rows": 8}],
    "prefill": [{"sequences": 1, "tokens": 16}, {"sequences": 1, "tokens": 256}],
}


def write_tiny_version(
    repository: Path, model: str = "tiny", version: int = 1, **changes: Any
) -> Path:
    """Write a version that `CheckOnlyPlugin` finds valid; returns its directory.

    `changes` replace fields of its config.json. The engine file holds no model.
    """
    directory = repository / model / str(version)
    directory.mkdir(parents=True)
    write_json(directory / "config.json", {**TINY_CONFIG, **changes})
    write_json(directory / "graph_grid.json", TINY_GRID)
    (directory / "tokenizer.json").write_text(byte_level_tokenizer(), encoding="utf-8")
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    (directory / "model.onnx").write_bytes(b"no model")
    return directory


def write_json(path: Path, document: Any) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(document), encoding="utf-8")


class CheckOnlyBackend:
    """A backend that checks versions, as `check` says, and cannot load any."""

    name = "check_only"

    def __init__(
        self, check: Callable[[ModelVersion], Sequence[Problem]] = lambda version: ()
    ) -> None:
        self._check = check

    def check(self, version: ModelVersion) -> Sequence[Problem]:
        return self._check(version)

    def estimate(self, version: ModelVersion) -> int:
        return 0

    def build(
        self,
        checkpoint: Any,
        directory: Path,
        *,
        limits: Mapping[str, int],
        options: Mapping[str, Any],
        progress: Callable[[str, float], None],
    ) -> BuildResult:
        raise Unavailable("this backend builds nothing")

    def runner_command(self, version: ModelVersion, *, threads: int) -> Sequence[str]:
        return ["false"]

    async def connect(self, version: ModelVersion, endpoint: Endpoint) -> Session:
        raise Unavailable("this backend serves nothing")


class CheckOnlyPlugin:
    """Registers a `CheckOnlyBackend` and the engine and sampler that `TINY_CONFIG` names."""

    def __init__(self, backend: CheckOnlyBackend | None = None) -> None:
        self._backend = backend or CheckOnlyBackend()

    @hookimpl
    def blink_backends(self) -> Sequence[CheckOnlyBackend]:
        return [self._backend]

    @hookimpl
    def blink_engines(self) -> Mapping[str, Factory]:
        return {"nothing": object}

    @hookimpl
    def blink_samplers(self) -> Mapping[str, Factory]:
        return {"nothing": object}
