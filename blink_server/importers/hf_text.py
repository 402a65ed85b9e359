"""What a Hugging Face directory says of text: its tokenizer, chat template and special ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink_server.errors import InvalidModel, Problem
from blink_server.importers.hf_config import CONFIG_FILE
from blink_server.importers.template_check import template_fault
from blink_server.json_file import read_bytes, read_json
from blink_server.text.tokenizers import HuggingFaceTokenizer

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_JSON_FILE = "chat_template.json"

_LARGEST_TOKENIZER = 256 << 20
_LARGEST_TEMPLATE = 4 << 20


@dataclass(frozen=True, slots=True)
class Text:
    """The text side of a checkpoint."""

    tokenizer_json: str
    chat_template: str | None
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None


def read_text(directory: Path, vocabulary_size: int) -> Text:
    """Read tokenizer.json and the small files around it.

    Ids that end an answer are those of tokenizer_config.json, generation_config.json and
    config.json, in this order. Raises `InvalidModel` naming file, field and value.
    """
    path = directory / TOKENIZER_FILE
    try:
        tokenizer_json = _text(path, _LARGEST_TOKENIZER)
        tokenizer = HuggingFaceTokenizer(tokenizer_json)
    except ValueError as error:
        raise _invalid(path, "", None, f"is not a tokenizer known here: {error}") from error
    if tokenizer.vocabulary_size > vocabulary_size:
        expected = f"must be below the model's vocabulary size, {vocabulary_size}"
        raise _invalid(path, "largest token id", tokenizer.vocabulary_size - 1, expected)
    settings_path = directory / TOKENIZER_CONFIG_FILE
    settings = _read_object(settings_path)
    ends = [_special_id(settings_path, settings, "eos_token", tokenizer)]
    for name in (GENERATION_CONFIG_FILE, CONFIG_FILE):
        ends += _end_ids(directory / name, vocabulary_size)
    ids = tuple(dict.fromkeys(token for token in ends if token is not None))
    if not ids:
        expected = f"is missing, there and in {CONFIG_FILE}; nothing says what ends an answer"
        raise _invalid(directory / GENERATION_CONFIG_FILE, "eos_token_id", None, expected)
    return Text(
        tokenizer_json=tokenizer_json,
        chat_template=_chat_template(directory, settings),
        eos_token_ids=ids,
        bos_token_id=_bos_token_id(settings_path, settings, tokenizer),
    )


def _chat_template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """The template of its own file, else of the tokenizer's configuration, where there is one."""
    path = directory / TEMPLATE_FILE
    if path.exists():
        return _compiled(path, "", _text(path, _LARGEST_TEMPLATE))
    path = directory / TEMPLATE_JSON_FILE
    template = _read_object(path).get("chat_template")
    if template is None:
        path, template = directory / TOKENIZER_CONFIG_FILE, settings.get("chat_template")
    if isinstance(template, list):  # several by name
        named = {each.get("name"): each.get("template") for each in template}
        template = named.get("default")
    if template is None:
        return None
    if isinstance(template, str):
        return _compiled(path, "chat_template", template)
    raise _invalid(path, "chat_template", None, "must be a template or a list of named ones")


def _compiled(path: Path, field: str, template: str) -> str:
    """The template itself, if it is one."""
    if fault := template_fault(template):
        raise _invalid(path, field, None, fault)
    return template


def _bos_token_id(
    path: Path, settings: Mapping[str, Any], tokenizer: HuggingFaceTokenizer
) -> int | None:
    """The id that begins a text, where the tokenizer or its configuration puts one there."""
    first = tokenizer.encode("a", add_special_tokens=True)[:1]
    if first and first[0] in tokenizer.special_ids:
        return first[0]
    if settings.get("add_bos_token") is True:
        return _special_id(path, settings, "bos_token", tokenizer)
    return None


def _special_id(
    path: Path, settings: Mapping[str, Any], field: str, tokenizer: HuggingFaceTokenizer
) -> int | None:
    """The id of a token that the configuration names, as text or as an object with "content"."""
    named = settings.get(field)
    text = named.get("content") if isinstance(named, dict) else named
    if text is None:
        return None
    for token in tokenizer.special_ids:
        if tokenizer.token_text(token) == text:
            return token
    raise _invalid(path, field, text, f"must be a special token of {TOKENIZER_FILE}")


def _end_ids(path: Path, vocabulary_size: int) -> list[int]:
    found = _read_object(path).get("eos_token_id")
    ids = found if isinstance(found, list) else [] if found is None else [found]
    for token in ids:
        if type(token) is not int or not 0 <= token < vocabulary_size:
            expected = f"must be token ids from 0 to {vocabulary_size - 1}"
            raise _invalid(path, "eos_token_id", found, expected)
    return ids


def _read_object(path: Path) -> Mapping[str, Any]:
    """The object in a JSON file; an empty one where there is no such file."""
    document = read_json(path) if path.exists() else {}
    if not isinstance(document, dict):
        raise _invalid(path, "", None, "must be an object")
    return document


def _text(path: Path, limit: int) -> str:
    try:
        return read_bytes(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(path, "", None, f"is not UTF-8: {error}") from error


def _invalid(path: Path, field: str, value: Any, expected: str) -> InvalidModel:
    return InvalidModel([Problem(path, field, value, expected)])
