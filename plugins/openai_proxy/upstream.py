"""The other server: its answers become token events, its errors ours."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import httpx

from blink_server.backend import (
    FinishReason,
    GenerateRequest,
    ModelVersion,
    SessionLimits,
    TokenEvent,
    TokenUsage,
)
from blink_server.errors import (
    BlinkError,
    EngineFailure,
    InvalidRequest,
    Overloaded,
    RunnerLost,
    Unavailable,
)
from blink_server.worker_backend import WorkerSession

from .body import asked
from .calls import plain, record
from .tokens import TextTokenizer

log = logging.getLogger(__name__)

_LONGEST_ERROR = 500  # characters of what the other server says of an error


async def open_upstream(version: ModelVersion, limits: SessionLimits, key: str | None) -> Upstream:
    """A session, once the other server has said that it has the model. Raises Unavailable."""
    session = Upstream(version, limits, key)
    try:
        await session.probe()
    except BaseException:
        await session.close()
        raise
    return session


class Upstream(WorkerSession):
    """Fulfils `Session`; when a connection fails it is lost, and the worker connects anew."""

    def __init__(self, version: ModelVersion, limits: SessionLimits, key: str | None) -> None:
        super().__init__(limits, self._answer)
        options = version.config["backend_options"]
        self._model: str = options["model"] or version.model
        self._context_length: int = version.config["limits"]["context_length"]
        self._tokenizer = TextTokenizer()
        self._client = httpx.AsyncClient(
            base_url=options["url"],
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(options["silence_seconds"], connect=options["connect_seconds"]),
            limits=httpx.Limits(max_connections=None),
        )

    async def probe(self) -> None:
        """Raise Unavailable where the other server is not there or has no such model."""
        try:
            reply = await self._client.get("models")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(f"its server {self._unreachable(error)}") from None
        if reply.status_code in (401, 403) or reply.status_code >= 500:
            raise Unavailable(f"its server answers {reply.status_code} when asked for its models")
        try:
            names = [str(model["id"]) for model in reply.json()["data"]]
        except (ValueError, KeyError, TypeError):
            return  # a server that does not tell is believed
        if self._model not in names:
            raise Unavailable(f"its server has no model {self._model!r}, but {', '.join(names)}")

    async def close(self) -> None:
        """See `Session.close`."""
        await super().close()
        await self._client.aclose()

    async def _answer(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        path, body = asked(request, self._model, self._context_length)
        try:
            async with self._client.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise _refusal(response)
                async for event in self._events(_chunks(response)):
                    yield event
        except httpx.HTTPError as error:
            reason = f"the server behind this model {self._unreachable(error)}"
            if not isinstance(error, httpx.ReadTimeout):
                self.lose(reason)
            raise RunnerLost(reason) from None

    async def _events(self, chunks: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[TokenEvent]:
        reason, usage = None, TokenUsage(0, 0)
        async for chunk in chunks:
            if told := chunk.get("usage"):
                usage = TokenUsage(told["prompt_tokens"], told["completion_tokens"])
            for choice in chunk.get("choices", ()):
                reason = choice.get("finish_reason") or reason
                if text := _text_of(choice):
                    # A delta is a token, near enough, until the usage at the end says it exactly.
                    usage = TokenUsage(usage.prompt_tokens, usage.generated_tokens + 1)
                    ids = self._tokenizer.encode(text, add_special_tokens=False)
                    yield TokenEvent(ids, usage=usage)
        if reason is None:
            raise EngineFailure("the server behind this model ended its answer without a reason")
        end = FinishReason.LENGTH if reason == "length" else FinishReason.STOP
        yield TokenEvent([], reason=end, usage=usage)

    def _unreachable(self, error: Exception) -> str:
        # The client is not told where the other server is; the log is.
        log.warning("%s: %s: %s", self._client.base_url, type(error).__name__, error)
        return f"cannot be reached ({type(error).__name__})"


async def _chunks(response: httpx.Response) -> AsyncIterator[Mapping[str, Any]]:
    """The payloads of the server-sent events. Raises EngineFailure for one that is an error."""
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        payload = line.removeprefix("data:").strip()
        if payload == "[DONE]":
            return
        try:
            chunk = json.loads(payload)
        except ValueError:
            raise EngineFailure("the server behind this model sent what is no JSON") from None
        if chunk.get("error"):
            raise EngineFailure(f"the server behind this model failed: {_message(chunk)}")
        yield chunk


def _text_of(choice: Mapping[str, Any]) -> str:
    """What a choice adds: its text, and each piece of a call as a record."""
    delta = choice.get("delta") or {}
    text = plain(choice.get("text") or delta.get("content") or "")
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        text += record(
            {
                "index": call.get("index", 0),
                "name": function.get("name") or None,
                "arguments": function.get("arguments") or "",
            }
        )
    return text


def _refusal(response: httpx.Response) -> BlinkError:
    status = response.status_code
    try:
        message = _message(response.json())
    except ValueError:
        message = response.reason_phrase
    match status:
        case 400 | 413 | 422:
            return InvalidRequest(f"the server behind this model refuses it: {message}")
        case 429 | 503:
            after = response.headers.get("Retry-After", "")
            seconds = float(after) if after.isdecimal() else 1.0
            return Overloaded(f"the server behind this model: {message}", retry_after=seconds)
        case 401 | 403 | 404:
            return Unavailable(f"the server behind this model answers {status}: {message}")
    return EngineFailure(f"the server behind this model answers {status}: {message}")


def _message(document: Any) -> str:
    error = document.get("error", document) if isinstance(document, Mapping) else document
    found = error.get("message", error) if isinstance(error, Mapping) else error
    return str(found)[:_LONGEST_ERROR]
