"""Requests that a version answers before it is READY, so that nobody waits for first times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blink_server.backend import (
    Backend,
    Endpoint,
    GenerateRequest,
    ModelVersion,
    SamplingParams,
    Session,
)
from blink_server.errors import BlinkError
from blink_server.hookspecs import TokenizerLoader


async def warm_up(
    version: ModelVersion,
    endpoint: Endpoint,
    backend: Backend,
    tokenizers: Mapping[str, TokenizerLoader],
) -> None:
    """Send what config.json's "warmup" names, one request after the other, and read the answers.

    Runs in the provisioner, through a session of its own. Raises BlinkError naming the request
    that failed.
    """
    requests = version.config.get("warmup", [])
    if not requests:
        return
    options = version.config["tokenizer"]
    tokenizer = tokenizers[options["name"]](version.directory, options)
    session = await backend.connect(version, endpoint)
    try:
        for number, request in enumerate(requests):
            prompt = tokenizer.encode(request["prompt"], add_special_tokens=True)
            for _ in range(request["count"]):
                await _answer(session, f"warmup[{number}]", prompt, request)
    finally:
        await session.close()


async def _answer(
    session: Session, name: str, prompt: list[int], request: Mapping[str, Any]
) -> None:
    try:
        stream = await session.submit(
            GenerateRequest(
                prompt_ids=prompt,
                max_tokens=request["max_tokens"],
                sampling=SamplingParams(temperature=0.0),
                ignore_eos=True,
                request_id=name,
            )
        )
        async for _ in stream:
            pass
    except BlinkError as error:
        raise BlinkError(f"{name}: {error}") from None
