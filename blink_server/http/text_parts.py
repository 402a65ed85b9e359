"""What a version needs to go from text to token ids and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from blink_server.backend import ModelVersion
from blink_server.errors import Unavailable
from blink_server.hookspecs import TokenizerLoader, ToolFormatFactory
from blink_server.text.chat_template import ChatTemplate
from blink_server.text.tokenizers import Tokenizer
from blink_server.text.tools.parser import ToolFormat


@dataclass(frozen=True, slots=True)
class TextParts:
    """What a version needs to go from text to token ids and back, and to find calls in the text."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    tool_format: ToolFormat | None = None


def load_text_parts(
    version: ModelVersion,
    tokenizer_loaders: Mapping[str, TokenizerLoader],
    tool_parsers: Mapping[str, ToolFormatFactory],
) -> TextParts:
    """Load a version's tokenizer, chat template and tool format, as its config.json names them.

    Reads files: call it in a thread. Raises `InvalidModel`, or `Unavailable` where no plugin
    brings the tokenizer or the tool parser.
    """
    options = version.config["tokenizer"]
    loader = tokenizer_loaders.get(options["name"])
    if loader is None:
        raise Unavailable(f"no plugin brings the tokenizer {options['name']!r}")
    tokenizer = loader(version.directory, options)
    template_file = version.config.get("chat_template")
    if template_file is None:
        return TextParts(tokenizer, None)
    eos_ids = version.config["eos_token_ids"]
    template = ChatTemplate.load(
        Path(version.directory, template_file),
        bos_token=_token_text(tokenizer, version.config.get("bos_token_id")),
        eos_token=_token_text(tokenizer, eos_ids[0] if eos_ids else None),
    )
    return TextParts(tokenizer, template, _tool_format(version, template, tool_parsers))


def _tool_format(
    version: ModelVersion, template: ChatTemplate, tool_parsers: Mapping[str, ToolFormatFactory]
) -> ToolFormat | None:
    name = version.config.get("tool_parser")
    if name is not None:
        if name not in tool_parsers:
            raise Unavailable(f"no plugin brings the tool parser {name!r}")
        return tool_parsers[name]()
    formats = (factory() for factory in tool_parsers.values())
    return next((each for each in formats if each.recognises(template.source)), None)


def _token_text(tokenizer: Tokenizer, token_id: int | None) -> str:
    return (tokenizer.token_text(token_id) or "") if token_id is not None else ""
