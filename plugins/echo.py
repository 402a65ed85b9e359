"""The backend `echo`: answers with the prompt, inside the worker. The smallest complete backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence

from blink_server.backend import FinishReason, GenerateRequest, ModelVersion, TokenEvent
from blink_server.hookspecs import Schema, hookimpl
from blink_server.worker_backend import WorkerBackend

DELAY = {"type": "number", "minimum": 0, "default": 0, "description": "Seconds before each token."}


class EchoBackend(WorkerBackend):
    name = "echo"

    async def generate(
        self, version: ModelVersion, request: GenerateRequest
    ) -> AsyncGenerator[TokenEvent, None]:
        for token_id in request.prompt_ids[: request.max_tokens]:
            await asyncio.sleep(version.config["backend_options"]["delay_seconds"])
            yield TokenEvent([token_id])
        cut = request.max_tokens < len(request.prompt_ids)
        yield TokenEvent([], reason=FinishReason.LENGTH if cut else FinishReason.STOP)


@hookimpl
def blink_backends() -> Sequence[EchoBackend]:
    return [EchoBackend()]


@hookimpl
def blink_option_schemas() -> Mapping[str, Mapping[str, Schema]]:
    options = {"additionalProperties": False, "properties": {"delay_seconds": DELAY}}
    return {"backend_options": {"echo": options}}
