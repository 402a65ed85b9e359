"""Every hook of the plugin door, with its contract; `docs/plugins.md` says how to write a plugin.

Observers are called whenever something happens, all other hooks once: while the server, a worker,
a runner or a command starts. They return quickly and import nothing heavy: what is expensive
belongs into the functions they return. A function takes those of its hook's arguments that it
needs.
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
    from blink_server.finished_request import FinishedRequest
    from blink_server.http.models import ModelDirectory
    from blink_server.importers.importer import Importer
    from blink_server.text.tokenizers import Tokenizer
    from blink_server.text.tools.parser import ToolFormat

PROJECT = "blink_server"

hookspec = HookspecMarker(PROJECT)
hookimpl = HookimplMarker(PROJECT)

Factory = Callable[[], Any]
"""Makes an object whose contract the backend that asks for it documents."""

SamplerFactory = Callable[[Mapping[str, Any]], Any]
"""`make(options)`: options is config.json's "sampler_options"."""

ToolFormatFactory = Callable[[], "ToolFormat"]
"""Makes what knows how one family of models writes tool calls."""

Connect = Callable[[ModelVersion, Endpoint], Awaitable[Session]]
"""`await connect(version, endpoint)` attaches a worker to a READY version. Raises Unavailable."""

TokenizerLoader = Callable[[Path, Mapping[str, Any]], "Tokenizer"]
"""`load(version_directory, options)`: options is config.json's "tokenizer". Raises InvalidModel."""

Schema = Mapping[str, Any]
"""A JSON Schema (2020-12) of an object."""


@hookspec
def blink_backends(
    engines: Mapping[str, Factory],
    samplers: Mapping[str, SamplerFactory],
    transports: Mapping[str, Connect],
) -> Sequence[Backend]:
    """Backends, each under its `name`: what config.json's "backend" may say.

    Each fulfils `blink_server.backend.Backend`; one that needs no process of its own derives from
    `blink_server.worker_backend.WorkerBackend`. The arguments are what all plugins have registered
    through the hooks of these names.

    Example:

        @hookimpl
        def blink_backends():
            return [EchoBackend()]
    """


@hookspec
def blink_engines() -> Mapping[str, Factory]:
    """Engines of backends that have engines, by name: what config.json's "engine.name" may say.

    A factory takes nothing. `blink_persistent` asks for objects that fulfil
    `blink_persistent.engines.Engine`.

    Example:

        @hookimpl
        def blink_engines():
            return {"mine": MyEngine}
    """


@hookspec
def blink_samplers() -> Mapping[str, SamplerFactory]:
    """Samplers that run inside an engine's step, by name: what config.json's "sampler" may say.

    A factory takes the options, config.json's "sampler_options". `blink_persistent` asks for
    objects that fulfil `blink_persistent.engines.Sampler`;
    `blink_persistent.samplers.source.SourceSampler` makes one of a few lines of CUDA C++.

    Example:

        @hookimpl
        def blink_samplers():
            return {"mine": lambda options: SourceSampler(FOLDER / "mine.h", options)}
    """


@hookspec
def blink_transports() -> Mapping[str, Connect]:
    """Ways for a worker to reach a ring, by name: what an `Endpoint.transport` may say.

    `await connect(version, endpoint)` attaches the worker to a READY version and returns a
    `blink_server.backend.Session`. It raises `Unavailable`.

    Example:

        @hookimpl
        def blink_transports():
            async def connect(version, endpoint):
                return await MySession.open(endpoint.address["socket"])

            return {"mine": connect}
    """


@hookspec
def blink_tokenizers() -> Mapping[str, TokenizerLoader]:
    """Tokenizers, by name: what config.json's "tokenizer.name" may say.

    `load(version_directory, options)` returns an object that fulfils
    `blink_server.text.tokenizers.Tokenizer`; options is config.json's "tokenizer". It raises
    `InvalidModel`, naming the file.

    Example:

        @hookimpl
        def blink_tokenizers():
            def load(version_directory, options):
                from my_library import MyTokenizer  # heavy imports wait until they are needed

                return MyTokenizer(version_directory / options["file"])

            return {"mine": load}
    """


@hookspec
def blink_tool_parsers() -> Mapping[str, ToolFormatFactory]:
    """Ways of writing tool calls, by name: what config.json's "tool_parser" may say.

    A factory takes nothing and makes an object that fulfils
    `blink_server.text.tools.parser.ToolFormat`, and `ConstrainedFormat` beside it where a model can
    be held to its calls. Without "tool_parser" the first one that recognises the model's chat
    template is taken.

    Example:

        @hookimpl
        def blink_tool_parsers():
            return {"mine": MyToolFormat}
    """


@hookspec
def blink_importers() -> Mapping[str, Importer]:
    """Readers of model files, by name: what `blink-server import --from NAME SOURCE` may say.

    `open(source, revision=, progress=)` returns an object that fulfils
    `blink_server.importers.checkpoint.Checkpoint`. It raises `InvalidModel` naming file, field and
    value, or `ModelImportError`.

    Example:

        @hookimpl
        def blink_importers():
            def open_checkpoint(source, *, revision, progress):
                return MyCheckpoint(Path(source))

            return {"mine": open_checkpoint}
    """


@hookspec
def blink_option_schemas() -> Mapping[str, Mapping[str, Schema]]:
    """JSON Schemas of options: by the field of config.json that holds them, then by whose they are.

    Fields are "backend_options", "engine", "tokenizer" and "sampler_options"; the inner name is
    that of the backend, engine, tokenizer or sampler. Options that a schema does not allow are
    refused by field, before a version is loaded; its defaults are filled in. Backends and samplers
    without a schema take no options. "name" and "file" of engine and tokenizer are left out, unless
    the schema has a property of that name.

    Example:

        @hookimpl
        def blink_option_schemas():
            delay = {"type": "number", "minimum": 0, "default": 0}
            schema = {"additionalProperties": False, "properties": {"delay_seconds": delay}}
            return {"backend_options": {"mine": schema}}
    """


@hookspec
def blink_routes(models: ModelDirectory) -> Mapping[str, object]:
    """Further HTTP routes, by path template: Falcon resources (`async def on_get(req, resp)`).

    Called in each worker. `models` is what it serves now: `models.lease_awaited(name)` holds one.
    API keys are asked for as everywhere; what a responder raises becomes an error reply. A path
    that is taken is refused, and both are named.

    Example:

        class Count:
            def __init__(self, models):
                self.models = models

            async def on_get(self, req, resp):
                resp.media = {"models": len(self.models.entries)}


        @hookimpl
        def blink_routes(models):
            return {"/mine/count": Count(models)}
    """


@hookspec
def blink_model_state_changed(change: ModelStateChange) -> None:
    """A version's state has changed. Called in the provisioner, on its event loop, at each change.

    `blink_server.model_events.ModelStateChange` has `model`, `version`, `epoch`, `previous`,
    `state`, `reason`, `seconds` (in the state before) and `at`. It must return at once; what it
    raises is logged, and changes nothing.

    Example:

        @hookimpl
        def blink_model_state_changed(change):
            if change.state == "UNAVAILABLE":
                print(f"{change.model}:{change.version}: {change.reason}")
    """


@hookspec
def blink_request_finished(request: FinishedRequest) -> None:
    """A choice of a request has ended, however it did. Called in its worker, on its event loop.

    `blink_server.finished_request.FinishedRequest` has its tokens and all its times, the
    scheduler's too. It must return at once; what it raises is logged, and changes nothing.

    Example:

        @hookimpl
        def blink_request_finished(request):
            seconds = (request.finished_ns - request.received_ns) / 1e9
            print(request.request_id, request.generated_tokens, seconds)
    """
