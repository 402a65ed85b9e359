"""Messages to prompt text: a model's jinja2 chat template, run as Hugging Face transformers does.

The environment (trimmed blocks, loop controls, `raise_exception`, `strftime_now`, a `tojson` that
leaves non-ASCII and HTML characters alone, the `generation` block) follows
https://huggingface.co/docs/transformers/chat_templating_writing so that templates written for it
give the same text here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from blink_server.errors import InvalidModel, InvalidRequest, Problem

Message = Mapping[str, Any]
"""An OpenAI message whose "content" has become a string."""


class _GenerationBlock(Extension):
    """`{% generation %}` marks what a model wrote, for training; when serving it is transparent."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it an instance variable)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, LoopControlExtension]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
    return environment


class ChatTemplate:
    """One version's chat template, compiled once; rendering is stateless."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile `source`. Raises jinja2.TemplateSyntaxError.

        `bos_token`, `eos_token`: what templates insert by these names. `now` feeds `strftime_now`.
        `takes_tools` says whether the template does anything with tools.
        """
        environment = _environment(now)
        self.source = source
        self.takes_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))
        self._template = environment.from_string(source)
        self._special = {"bos_token": bos_token, "eos_token": eos_token}

    @classmethod
    def load(cls, path: Path, *, bos_token: str = "", eos_token: str = "") -> ChatTemplate:
        """Read and compile a template file. Raises `InvalidModel` naming file and line."""
        try:
            source = path.read_text(encoding="utf-8")
            return cls(source, bos_token=bos_token, eos_token=eos_token)
        except OSError as error:
            problem = Problem(path, "", None, f"cannot be read: {error.strerror}")
        except UnicodeDecodeError as error:
            problem = Problem(path, "", None, f"is not UTF-8: {error}")
        except jinja2.TemplateSyntaxError as error:
            problem = Problem(path, f"line {error.lineno}", None, str(error.message))
        raise InvalidModel([problem])

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation.

        `tools`: OpenAI's tool objects. `variables` are the request's `chat_template_kwargs`; they
        cannot replace messages or tools.
        Raises `InvalidRequest` with the template's own words when it refuses the conversation or
        fails on it.
        """
        context = {
            "documents": None,
            **self._special,
            **(variables or {}),
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(context)
        except jinja2.TemplateError as error:
            raise _refused(f"the chat template refuses these messages: {error.message}") from error
        except Exception as error:
            # A template is code: what it does with unforeseen input is the input's fault here.
            raise _refused(
                f"the chat template fails on these messages: {type(error).__name__}: {error}"
            ) from error


def _refused(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="messages", code="chat_template_error")
