"""The plugin `openai_proxy`: versions that another OpenAI-compatible server answers.

So one repository can front several machines. A version needs two files:

    config.json          {"backend": "openai_proxy",
                          "backend_options": {"url": "http://gpu-7:8000/v1", "model": "llama-3"},
                          "tokenizer": {"name": "openai_proxy", "file": null},
                          "chat_template": "chat_template.jinja",
                          "limits": {"context_length": 8192},
                          "eos_token_ids": []}
    chat_template.jinja  <|openai_chat|>{{ {"messages": messages, "tools": tools} | tojson }}

With this template a chat goes on as it came, and the other server applies its own; with a model's
real template it is written out here and goes on as a completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blink_server.hookspecs import Schema, TokenizerLoader, ToolFormatFactory, hookimpl

from .backend import OPTIONS, ProxyBackend
from .calls import ProxyToolFormat
from .tokens import TextTokenizer

NAME = ProxyBackend.name


@hookimpl
def blink_backends() -> Sequence[ProxyBackend]:
    """`openai_proxy`."""
    return [ProxyBackend()]


@hookimpl
def blink_tokenizers() -> Mapping[str, TokenizerLoader]:
    """`openai_proxy`: text is passed on as it is."""
    return {NAME: lambda directory, options: TextTokenizer()}


@hookimpl
def blink_tool_parsers() -> Mapping[str, ToolFormatFactory]:
    """`openai_proxy`: calls come as the other server has found them."""
    return {NAME: ProxyToolFormat}


@hookimpl
def blink_option_schemas() -> Mapping[str, Mapping[str, Schema]]:
    """Where the other server is, and what it calls the model."""
    nothing = {"additionalProperties": False, "properties": {}}
    return {"backend_options": {NAME: OPTIONS}, "tokenizer": {NAME: nothing}}
