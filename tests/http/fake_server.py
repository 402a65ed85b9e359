"""A worker application over scripted sessions, to be run by gunicorn: `fake_server:make_app()`.

The models: "tiny" answers; "endless" gives one token and waits, and writes to the file descriptor
BLINK_TEST_PIPE when a request has begun ("begun\\n") and when nothing is in flight any more
("ended\\n"); "caller" calls a tool;
"broken" fails after its first token, "broken-early" before it; "full" has no slot.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from blink_server.backend import GenerateRequest, ModelVersion, SessionLimits, TokenEvent
from blink_server.errors import EngineFailure
from blink_server.http.app import create_app
from blink_server.http.model_entry import ModelEntry
from blink_server.http.models import ModelDirectory
from blink_server.http.settings import ServerSettings, key_digest
from blink_server.http.text_parts import TextParts
from blink_server.repository.harness import State
from blink_server.testing.fake_backend import FakeSession, Respond, answer
from blink_server.testing.tiny_tokenizer import CHAT_TEMPLATE, IM_END, byte_level_tokenizer
from blink_server.text.chat_template import ChatTemplate
from blink_server.text.tokenizers import HuggingFaceTokenizer
from blink_server.text.tools.json_formats import Hermes

ANSWER = "naïve 你好 😀 STOP the end"
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


def make_app() -> Any:
    tokenizer = HuggingFaceTokenizer(byte_level_tokenizer())
    text = TextParts(tokenizer, ChatTemplate(CHAT_TEMPLATE))
    template = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}" + CHAT_TEMPLATE
    calling = TextParts(tokenizer, ChatTemplate(template), Hermes())
    first = tokenizer.encode("x", add_special_tokens=False)
    limits = SessionLimits(512, tokenizer.vocabulary_size, (IM_END,))
    sessions: dict[str, FakeSession] = {}
    tasks: set[asyncio.Task[None]] = set()

    async def report(session: FakeSession) -> None:
        os.write(int(os.environ["BLINK_TEST_PIPE"]), b"begun\n")
        await session.idle.wait()
        os.write(int(os.environ["BLINK_TEST_PIPE"]), b"ended\n")

    def endless(request: GenerateRequest) -> list[Any]:
        if not tasks:
            task = asyncio.create_task(report(sessions["endless"]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return [TokenEvent(first), asyncio.Event()]

    rules: dict[str, Respond] = {
        "tiny": answer(tokenizer, ANSWER, eos=IM_END),
        "endless": endless,
        "caller": answer(tokenizer, CALL, eos=IM_END),
        "broken": lambda request: [TokenEvent(first), EngineFailure("the runner died")],
        "broken-early": lambda request: [EngineFailure("the runner died")],
        "full": lambda request: [],
    }
    for name, rule in rules.items():
        slots = 0 if name == "full" else None
        sessions[name] = FakeSession(rule, limits, free_slots=slots)
    directory = ModelDirectory()
    directory.publish(
        ModelEntry(
            ModelVersion(name, 1, Path("unused"), {}),
            1,
            State.READY,
            session=session,
            text=calling if name == "caller" else text,
        )
        for name, session in sessions.items()
    )
    settings = ServerSettings.of_environment(os.environ)
    keys = frozenset({key_digest("secret")})
    return create_app(directory, replace(settings, api_key_digests=keys))
