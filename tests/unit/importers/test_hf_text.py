"""Tokenizer, template and special ids of a Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from blink_server.errors import InvalidModel
from blink_server.importers.hf_text import Text, read_text
from blink_server.testing.tiny_huggingface import VOCABULARY_SIZE, write_tiny_huggingface
from blink_server.testing.tiny_tokenizer import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    IM_END,
    IM_START,
    byte_level_tokenizer,
)


def text_of(tmp_path: Path, **files: Any) -> Text:
    documents = {name.replace("__", "."): document for name, document in files.items()}
    directory = write_tiny_huggingface(tmp_path / "m", files=documents).directory
    return read_text(directory, VOCABULARY_SIZE)


def refusal(tmp_path: Path, **files: Any) -> str:
    with pytest.raises(InvalidModel) as refused:
        text_of(tmp_path, **files)
    return str(refused.value)


@pytest.mark.parametrize(
    ("tokenizer", "generation", "config", "expected"),
    [
        ("<|im_end|>", [IM_START, IM_END], END_OF_TEXT, (IM_END, IM_START, END_OF_TEXT)),
        ({"content": "<|im_end|>"}, IM_END, IM_END, (IM_END,)),
        (None, END_OF_TEXT, None, (END_OF_TEXT,)),
        (None, None, [7, 8], (7, 8)),
    ],
)
def test_ids_that_end_an_answer_come_from_all_files_the_tokenizers_first(
    tmp_path: Path, tokenizer: Any, generation: Any, config: Any, expected: tuple[int, ...]
) -> None:
    directory = write_tiny_huggingface(
        tmp_path / "m",
        config={"eos_token_id": config},
        files={
            "tokenizer_config.json": {"eos_token": tokenizer},
            "generation_config.json": None if generation is None else {"eos_token_id": generation},
        },
    ).directory
    assert read_text(directory, VOCABULARY_SIZE).eos_token_ids == expected


def test_a_directory_that_names_no_end_is_refused(tmp_path: Path) -> None:
    text = refusal(tmp_path, tokenizer_config__json=None, generation_config__json=None)
    assert "generation_config.json: eos_token_id: is missing, there and in config.json" in text


@pytest.mark.parametrize("found", [VOCABULARY_SIZE, -1, "2", True, [2, None]])
def test_ends_that_are_no_ids_are_refused(tmp_path: Path, found: Any) -> None:
    text = refusal(tmp_path, generation_config__json={"eos_token_id": found})
    assert f"generation_config.json: eos_token_id: is {found!r}; must be token ids" in text


def test_special_tokens_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    text = refusal(tmp_path, tokenizer_config__json={"eos_token": "</s>"})
    assert "tokenizer_config.json: eos_token: is '</s>'; must be a special token of" in text


def _beginning_with(token: str, id_: int) -> str:
    tokenizer = Tokenizer.from_str(byte_level_tokenizer())
    tokenizer.post_processor = TemplateProcessing(
        single=f"{token} $A", special_tokens=[(token, id_)]
    )
    return str(tokenizer.to_str())


@pytest.mark.parametrize(
    ("settings", "tokenizer", "expected"),
    [
        ({"bos_token": "<|im_start|>"}, None, None),
        ({"bos_token": "<|im_start|>", "add_bos_token": False}, None, None),
        ({"bos_token": "<|im_start|>", "add_bos_token": True}, None, IM_START),
        ({}, ("<|endoftext|>", END_OF_TEXT), END_OF_TEXT),
    ],
)
def test_a_text_begins_with_a_token_only_where_the_model_wants_one(
    tmp_path: Path, settings: dict[str, Any], tokenizer: Any, expected: int | None
) -> None:
    serialized = byte_level_tokenizer() if tokenizer is None else _beginning_with(*tokenizer)
    settings = {"eos_token": "<|im_end|>", **settings}
    text = text_of(tmp_path, tokenizer_config__json=settings, tokenizer__json=serialized)
    assert text.bos_token_id == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, CHAT_TEMPLATE),
        ({"tokenizer_config__json": {}}, None),
        ({"tokenizer_config__json": None}, None),
        ({"chat_template__json": {"chat_template": "from json"}}, "from json"),
        (
            {"chat_template__json": {"chat_template": "json"}, "chat_template__jinja": "own\n"},
            "own\n",
        ),
        (
            {
                "tokenizer_config__json": {
                    "chat_template": [
                        {"name": "tool_use", "template": "tools"},
                        {"name": "default", "template": "plain"},
                    ]
                }
            },
            "plain",
        ),
    ],
)
def test_the_chat_template_is_found_where_models_keep_it(
    tmp_path: Path, files: dict[str, Any], expected: str | None
) -> None:
    assert text_of(tmp_path, **files).chat_template == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer__json": None}, "tokenizer.json: is missing"),
        ({"tokenizer__json": "{}"}, "tokenizer.json: is not a tokenizer known here: "),
        ({"tokenizer_config__json": "[1]"}, "tokenizer_config.json: must be an object"),
        ({"tokenizer_config__json": "{"}, "tokenizer_config.json: is not JSON at line 1:2"),
        (
            {"tokenizer_config__json": {"chat_template": 3}},
            "tokenizer_config.json: chat_template: must be a template or a list of named ones",
        ),
        (
            {"tokenizer_config__json": {"chat_template": "{% if %}"}},
            "tokenizer_config.json: chat_template: must be a Jinja template; line 1: Expected an",
        ),
        (
            {"chat_template__json": {"chat_template": "{% endfor %}"}},
            "chat_template.json: chat_template: must be a Jinja template; line 1: ",
        ),
        (
            {"chat_template__jinja": "\n{{ x | unheard_of }}"},
            "chat_template.jinja: must be a Jinja template; line 2: No filter named 'unheard_of'",
        ),
    ],
)
def test_files_that_cannot_be_used_are_named(
    tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    assert message in refusal(tmp_path, **files)


def test_files_that_are_not_text_are_named(tmp_path: Path) -> None:
    directory = write_tiny_huggingface(tmp_path / "m").directory
    (directory / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidModel, match=r"chat_template\.jinja: is not UTF-8"):
        read_text(directory, VOCABULARY_SIZE)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    directory = write_tiny_huggingface(tmp_path / "m").directory
    largest = max(json.loads(byte_level_tokenizer())["model"]["vocab"].values())
    with pytest.raises(InvalidModel, match=r"tokenizer\.json: largest token id: is \d+; must be"):
        read_text(directory, largest)
