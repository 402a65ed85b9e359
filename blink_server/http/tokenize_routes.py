"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import falcon.asgi

from blink_server.http.body import read_object
from blink_server.http.default_model import with_model
from blink_server.http.fields import Table, array, boolean, integer, mapping, refuse, string
from blink_server.http.messages import messages
from blink_server.http.model_entry import ModelEntry
from blink_server.http.models import ModelDirectory
from blink_server.http.openai_requests import parse_chat
from blink_server.http.prepare import encode_prompts_unchecked, encode_text
from blink_server.http.settings import ServerSettings
from blink_server.http.tool_fields import tools

MAX_TOKENS = 2**24

TOKENIZE_TEXT = Table(
    {
        "model": string,
        "prompt": string,
        "add_special_tokens": boolean,
        "return_token_strs": boolean,
    },
    ("model", "prompt"),
)
TOKENIZE_CHAT = Table(
    {
        "model": string,
        "messages": messages,
        "tools": tools,
        "add_generation_prompt": boolean,
        "add_special_tokens": boolean,
        "chat_template_kwargs": mapping,
        "return_token_strs": boolean,
    },
    ("model", "messages"),
)
DETOKENIZE = Table(
    {"model": string, "tokens": array(integer(0, 2**31 - 1), most=MAX_TOKENS)},
    ("model", "tokens"),
)


class TokenizeResource:
    """POST /tokenize: the token ids that a prompt, or a conversation, becomes."""

    def __init__(self, directory: ModelDirectory, settings: ServerSettings) -> None:
        self._directory = directory
        self._settings = settings

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """`{"model", "prompt" | "messages", ...}` -> `{"count", "max_model_len", "tokens"}`."""
        body = with_model(await read_object(req, self._settings), self._directory, self._settings)
        table = TOKENIZE_CHAT if "messages" in body else TOKENIZE_TEXT
        values = table.parse(body)
        with self._directory.lease(values["model"]) as entry:
            ids = await self._ids(body, values, entry)
            reply: dict[str, Any] = {"count": len(ids), "tokens": ids}
            if entry.session is not None:
                reply["max_model_len"] = entry.session.limits.context_length
            if values.get("return_token_strs") and entry.text is not None:
                reply["token_strs"] = [entry.text.tokenizer.token_text(each) for each in ids]
        resp.data = json.dumps(reply).encode()

    async def _ids(
        self, body: Mapping[str, Any], values: Mapping[str, Any], entry: ModelEntry
    ) -> list[int]:
        if "messages" not in values:
            special = values.get("add_special_tokens", True)
            return await encode_text(values["prompt"], entry, add_special_tokens=special)
        chat = {name: value for name, value in body.items() if name != "return_token_strs"}
        [ids] = await encode_prompts_unchecked(parse_chat(chat, max_n=1), entry)
        return ids


class DetokenizeResource:
    """POST /detokenize: the text of token ids."""

    def __init__(self, directory: ModelDirectory, settings: ServerSettings) -> None:
        self._directory = directory
        self._settings = settings

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """`{"model", "tokens"}` -> `{"prompt"}`; special tokens are shown."""
        body = with_model(await read_object(req, self._settings), self._directory, self._settings)
        values = DETOKENIZE.parse(body)
        with self._directory.lease(values["model"]) as entry:
            assert entry.text is not None, "only entries that serve are leased"
            ids, tokenizer = values["tokens"], entry.text.tokenizer
            if ids and max(ids) >= tokenizer.vocabulary_size:
                expected = f"token ids below {tokenizer.vocabulary_size}"
                raise refuse("tokens", max(ids), expected)
            text = tokenizer.decode(ids, skip_special_tokens=False)
        resp.data = json.dumps({"prompt": text}).encode()
