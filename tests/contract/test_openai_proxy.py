"""One whole server in front of another, through the plugin `openai_proxy`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from blink_server.testing.server_process import ServerProcess
from blink_server.testing.tiny_repository import write_json
from blink_server.testing.tiny_tokenizer import CHAT_TEMPLATE, byte_level_tokenizer

PLUGINS = Path(__file__).parents[2] / "plugins"
PASS_ON = '<|openai_chat|>{{ {"messages": messages, "tools": tools} | tojson }}'


def write_version(repository: Path, model: str, backend: str, **config: Any) -> Path:
    directory = repository / model / "1"
    directory.mkdir(parents=True)
    fields = {"backend": backend, "chat_template": "chat_template.jinja", "eos_token_ids": []}
    write_json(directory / "config.json", {**fields, "limits": {"context_length": 512}, **config})
    return directory


@pytest.mark.slow  # two whole servers
async def test_a_server_in_front_of_another_answers_like_it(short_path: Path) -> None:
    directory = write_version(short_path / "back", "echo", "echo")
    (directory / "tokenizer.json").write_text(byte_level_tokenizer(), encoding="utf-8")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    (short_path / "keys").write_text("secret\n", encoding="utf-8")
    (short_path / "keys").chmod(0o600)
    back = await ServerProcess.start(
        short_path / "back",
        short_path / "run-back",
        f"--api-key-file={short_path / 'keys'}",
        plugins=PLUGINS,
    )
    front = None
    try:
        url = await back.ready()
        directory = write_version(
            short_path / "front",
            "mirror",
            "openai_proxy",
            backend_options={
                "url": f"{url}/v1",
                "model": "echo",
                "api_key_file": str(short_path / "keys"),
            },
            tokenizer={"name": "openai_proxy", "file": None},
        )
        (directory / "chat_template.jinja").write_text(PASS_ON, encoding="utf-8")
        front = await ServerProcess.start(
            short_path / "front", short_path / "run-front", plugins=PLUGINS
        )
        await compare(url, await front.ready())
        back.kill_everything()
        async with openai.AsyncOpenAI(
            base_url=f"{await front.ready()}/v1", api_key="x", max_retries=0
        ) as client:
            with pytest.raises(openai.InternalServerError) as caught:
                await client.completions.create(model="mirror", prompt="x")
            assert caught.value.status_code == 503
    finally:
        for server in filter(None, (front, back)):
            server.kill_everything()
            await server.exit()
            print(server.output)


async def compare(back: str, front: str) -> None:
    answers = []
    for url, model, key in ((back, "echo", "secret"), (front, "mirror", "none")):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
            answers.append(await ask(client, model))
    assert answers[0] == answers[1]
    assert answers[0]["whole"][0].startswith("user\nnaïve 你好")


async def ask(client: openai.AsyncOpenAI, model: str) -> dict[str, Any]:
    messages: Any = [{"role": "user", "content": "naïve 你好"}]
    whole = await client.chat.completions.create(model=model, messages=messages)
    short = await client.completions.create(model=model, prompt="Tell me more", max_tokens=3)
    streamed = [
        chunk
        async for chunk in await client.chat.completions.create(
            model=model, messages=messages, stream=True, stream_options={"include_usage": True}
        )
    ]
    assert whole.usage is not None
    assert short.usage is not None
    return {
        "whole": (whole.choices[0].message.content, whole.choices[0].finish_reason),
        "usage": json.loads(whole.usage.to_json()),
        "short": (short.choices[0].text, short.choices[0].finish_reason, short.usage.to_json()),
        "text": "".join(c.choices[0].delta.content or "" for c in streamed if c.choices),
        "total": streamed[-1].usage and streamed[-1].usage.to_json(),
    }
