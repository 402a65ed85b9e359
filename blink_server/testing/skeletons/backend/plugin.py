"""The backend `my_plugin`: says the prompt backwards. Replace it by yours."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence

from blink_server.backend import FinishReason, GenerateRequest, ModelVersion, TokenEvent
from blink_server.hookspecs import Schema, hookimpl
from blink_server.worker_backend import WorkerBackend


class MyBackend(WorkerBackend):
    """Serves inside the workers, so nothing here may block their event loops."""

    name = "my_plugin"

    async def generate(
        self, version: ModelVersion, request: GenerateRequest
    ) -> AsyncGenerator[TokenEvent, None]:
        answer = list(reversed(request.prompt_ids))
        for token_id in answer[: request.max_tokens]:
            yield TokenEvent([token_id])
        cut = len(answer) > request.max_tokens
        yield TokenEvent([], reason=FinishReason.LENGTH if cut else FinishReason.STOP)


@hookimpl
def blink_backends() -> Sequence[MyBackend]:
    return [MyBackend()]


@hookimpl
def blink_option_schemas() -> Mapping[str, Mapping[str, Schema]]:
    return {"backend_options": {"my_plugin": {"additionalProperties": False, "properties": {}}}}
