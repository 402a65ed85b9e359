"""Every hook of the plugin door, with its contract; `docs/plugins.md` says how to write a plugin.

All hooks but `blink_model_state_changed` are called once, while the server, a worker, a runner or a
command starts. They return quickly and import nothing heavy: what is expensive belongs into the
functions they return.
"""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pluggy import HookimplMarker, HookspecMarker

from blink_server.backend import Backend, Endpoint, ModelVersion, Session
from blink_server.model_events import ModelStateChange

if TYPE_CHECKING:
    from blink_server.text.tokenizers import Tokenizer

PROJECT = "blink_server"

hookspec = HookspecMarker(PROJECT)
hookimpl = HookimplMarker(PROJECT)

Factory = Callable[[], Any]
"""Makes an object whose contract the backend that asks for it documents."""

Connect = Callable[[ModelVersion, Endpoint], Awaitable[Session]]
"""`await connect(version, endpoint)` attaches a worker to a READY version. Raises Unavailable."""

TokenizerLoader = Callable[[Path, Mapping[str, Any]], "Tokenizer"]
"""`load(version_directory, options)`: options is config.json's "tokenizer". Raises InvalidModel."""


@hookspec
def blink_backends(
    engines: Mapping[str, Factory],
    samplers: Mapping[str, Factory],
    transports: Mapping[str, Connect],
) -> Sequence[Backend]:
    """Backends, each under its `name`: what config.json's "backend" may say.

    The arguments are what all plugins have registered; a hook takes those it needs.
    """


@hookspec
def blink_engines() -> Mapping[str, Factory]:
    """Engines of backends that have engines, by name: what config.json's "engine.name" may say.

    `blink_persistent` asks for objects that fulfil its `Engine` protocol.
    """


@hookspec
def blink_samplers() -> Mapping[str, Factory]:
    """Samplers that run inside an engine's step, by name: what config.json's "sampler" may say.

    `blink_persistent` asks for objects that fulfil its `Sampler` protocol.
    """


@hookspec
def blink_transports() -> Mapping[str, Connect]:
    """Ways for a worker to reach a ring, by name: what an `Endpoint.transport` may say."""


@hookspec
def blink_tokenizers() -> Mapping[str, TokenizerLoader]:
    """Tokenizers, by name: what config.json's "tokenizer.name" may say."""


@hookspec
def blink_tool_parsers() -> Mapping[str, Factory]:
    """Ways of writing tool calls, by name: what config.json's "tool_parser" may say.

    A factory makes an object that fulfils `blink_server.text.tools.parser.ToolFormat`.
    """


@hookspec
def blink_model_state_changed(change: ModelStateChange) -> None:
    """A version's state has changed. Called in the provisioner, on its event loop, at each change.

    It must return at once; what it raises is logged, and changes nothing.
    """
