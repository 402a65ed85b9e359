"""What is not supported is refused by name, or left to the library where config.json says so."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from blink_bpe.loading import load
from blink_bpe.tokenizer import BlinkBpeTokenizer
from blink_server.errors import InvalidModel
from blink_server.option_schemas import check_options
from blink_server.plugins import load_plugins
from blink_server.text.tokenizers import HuggingFaceTokenizer

Change = Callable[[dict[str, Any]], None]
Pair = tuple[HuggingFaceTokenizer, BlinkBpeTokenizer]
MakePair = Callable[[Mapping[str, Any]], Pair]


def setting(path: str, value: object) -> Change:
    def change(document: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            document = document[parent]
        document[last] = value

    return change


def adding(*tokens: dict[str, Any]) -> Change:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)

    def change(document: dict[str, Any]) -> None:
        first = max(token["id"] for token in document["added_tokens"]) + 1
        for place, token in enumerate(tokens):
            document["added_tokens"].append({"id": first + place, **plain, **token})

    return change


def without_bytes(document: dict[str, Any]) -> None:
    del document["model"]["vocab"]["ÿ"]  # no UTF-8 has it
    del document["model"]["vocab"]["ĉ"]  # a tabulator
    del document["model"]["vocab"]["Ą"]  # U+0004


def both(first: Change, second: Change) -> Change:
    def change(document: dict[str, Any]) -> None:
        first(document)
        second(document)

    return change


BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
SPLIT = {
    "type": "Split",
    "pattern": {"Regex": r"\w+"},
    "behavior": "Isolated",
    "invert": False,
}


def sequence(*steps: dict[str, Any]) -> Change:
    return setting("pre_tokenizer", {"type": "Sequence", "pretokenizers": list(steps)})


REFUSED: dict[str, tuple[Change, str]] = {
    "another model": (
        setting("model", {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}),
        "model.type",
    ),
    "dropout": (setting("model.dropout", 0.1), "model.dropout"),
    "prefix": (
        both(setting("model.merges", []), setting("model.continuing_subword_prefix", "##")),
        "model.continuing_subword_prefix",
    ),
    "suffix": (setting("model.end_of_word_suffix", "</w>"), "model.end_of_word_suffix"),
    "bytes by name": (
        both(without_bytes, setting("model.byte_fallback", True)),
        "model.byte_fallback",
    ),
    "unknown bytes in one": (
        both(without_bytes, setting("model.fuse_unk", True)),
        "model.fuse_unk",
    ),
    "no token for unknown bytes": (
        both(without_bytes, setting("model.unk_token", "<nowhere>")),
        "model.unk_token",
    ),
    "one id twice": (setting("model.vocab.zzz", 5), "model.vocab"),
    "another normalizer": (setting("normalizer", {"type": "NFKC"}), "normalizer"),
    "another decoder": (
        setting(
            "decoder",
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        ),
        "decoder",
    ),
    "another processor": (
        setting("post_processor", {"type": "BertProcessing", "sep": ["!", 3], "cls": ["!", 3]}),
        "post_processor",
    ),
    "no pre-tokenizer": (setting("pre_tokenizer", None), "pre_tokenizer"),
    "a space before": (
        setting("pre_tokenizer.add_prefix_space", True),
        "pre_tokenizer.add_prefix_space",
    ),
    "no words": (setting("pre_tokenizer.use_regex", False), "pre_tokenizer"),
    "another step": (sequence({"type": "Whitespace"}, BYTE_LEVEL), "pre_tokenizer"),
    "digits together": (
        sequence({"type": "Digits", "individual_digits": False}, BYTE_LEVEL),
        "pre_tokenizer.individual_digits",
    ),
    "another pattern": (
        sequence(SPLIT, {**BYTE_LEVEL, "use_regex": False}),
        "pre_tokenizer.pattern",
    ),
    "another behavior": (
        sequence({**SPLIT, "behavior": "Removed"}, {**BYTE_LEVEL, "use_regex": False}),
        "pre_tokenizer.behavior",
    ),
    "inverted": (
        sequence({**SPLIT, "invert": True}, {**BYTE_LEVEL, "use_regex": False}),
        "pre_tokenizer.invert",
    ),
    "space of two tokens": (
        adding({"content": "<x>", "rstrip": True}, {"content": "  "}),
        "added_tokens.rstrip",
    ),
    "one text of two tokens": (
        both(
            setting("normalizer", {"type": "NFC"}),
            adding(
                {"content": "é", "normalized": True}, {"content": "e\u0301", "normalized": True}
            ),
        ),
        "added_tokens",
    ),
}


def written(directory: Path, document: Mapping[str, Any]) -> Path:
    file = directory / "tokenizer.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_refused_by_file_and_field(
    tmp_path: Path, gpt2: dict[str, Any], case: str
) -> None:
    change, field = REFUSED[case]
    document = copy.deepcopy(gpt2)
    change(document)
    file = written(tmp_path, document)
    with pytest.raises(InvalidModel) as refused:
        load(tmp_path, {"name": "blink_bpe"})
    [problem] = refused.value.problems
    assert (problem.file, problem.field) == (file, field)


def test_the_library_stands_in_where_config_says_so(
    tmp_path: Path, gpt2: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    document = copy.deepcopy(gpt2)
    document["pre_tokenizer"]["add_prefix_space"] = True
    file = written(tmp_path, document)
    with caplog.at_level(logging.WARNING):
        tokenizer = load(tmp_path, {"name": "blink_bpe", "fallback": "huggingface"})
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    [record] = caplog.records
    assert str(file) in record.getMessage()
    assert "add_prefix_space" in record.getMessage()


def test_nothing_stands_in_for_what_is_supported(tmp_path: Path, gpt2: dict[str, Any]) -> None:
    (tmp_path / "other.json").write_text(json.dumps(gpt2), encoding="utf-8")
    tokenizer = load(tmp_path, {"file": "other.json", "fallback": "huggingface"})
    assert isinstance(tokenizer, BlinkBpeTokenizer)


@pytest.mark.parametrize(("options", "field"), [({"fallback": "x"}, "fallback"), ({"x": 1}, "x")])
def test_other_options_are_refused_by_field(
    tmp_path: Path, options: dict[str, Any], field: str
) -> None:
    config = {"tokenizer": {"name": "blink_bpe", "file": "tokenizer.json", **options}}
    _, problems = check_options(tmp_path / "config.json", config, load_plugins([]).option_schemas)
    assert [problem.field for problem in problems] == [f"tokenizer.{field}"]


def test_a_broken_file_is_refused_even_with_a_fallback(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InvalidModel, match=r"tokenizer\.json"):
        load(tmp_path, {"fallback": "huggingface"})


def test_the_plugin_door_offers_it(tmp_path: Path, gpt2: dict[str, Any]) -> None:
    written(tmp_path, gpt2)
    tokenizer = load_plugins([]).tokenizers["blink_bpe"](tmp_path, {"name": "blink_bpe"})
    assert isinstance(tokenizer, BlinkBpeTokenizer)


@pytest.mark.parametrize("unknown", [None, "!", "<|endoftext|>"])
@pytest.mark.parametrize("ignore_merges", [True, False])
def test_bytes_without_a_token(
    gpt2: dict[str, Any], make_pair: MakePair, unknown: str | None, ignore_merges: bool
) -> None:
    document = copy.deepcopy(gpt2)
    without_bytes(document)
    document["model"].update(unk_token=unknown, ignore_merges=ignore_merges)
    document["model"]["merges"] = [
        merge for merge in document["model"]["merges"] if "ĉ" not in "".join(merge)
    ]
    library, native = make_pair(document)
    for text in ("a\tb", "\t\t\t", "hel\x04lo wor\tld", "\x04", "!\t!", "!!\x04\x04!!"):
        ids = library.encode(text, add_special_tokens=False)
        assert native.encode(text, add_special_tokens=False) == ids, ascii(text)


SPECIAL_TOKENS = {
    f"<{letter}>": {"id": f"<{letter}>", "ids": ids, "tokens": [f"<{letter}>"] * len(ids)}
    for letter, ids in {"a": [7], "b": [8, 9]}.items()
}


def template(*pieces: str) -> dict[str, Any]:
    def piece(name: str) -> dict[str, Any]:
        kind = "Sequence" if name in "AB" else "SpecialToken"
        return {kind: {"id": name, "type_id": 0}}

    return {
        "type": "TemplateProcessing",
        "single": [piece(name) for name in pieces],
        "pair": [piece(name) for name in (*pieces, "B")],
        "special_tokens": SPECIAL_TOKENS,
    }


@pytest.mark.parametrize(
    "processor",
    [
        template("<a>", "A"),
        template("<a>", "A", "<b>", "<a>"),
        {
            "type": "Sequence",
            "processors": [
                BYTE_LEVEL,
                template("<b>", "A", "<a>"),
            ],
        },
    ],
)
def test_special_tokens_are_put_around_a_text(
    gpt2: dict[str, Any], make_pair: MakePair, processor: dict[str, Any]
) -> None:
    library, native = make_pair({**gpt2, "post_processor": processor})
    for text in ("", "hello world"):
        ids = library.encode(text, add_special_tokens=True)
        assert native.encode(text, add_special_tokens=True) == ids
        assert len(ids) > len(native.encode(text, add_special_tokens=False))


@pytest.mark.parametrize(
    ("processor", "field"),
    [
        (template("A", "A"), r"post_processor\.single"),
        (
            {"type": "Sequence", "processors": [template("<a>", "A"), template("<b>", "A")]},
            "post_processor",
        ),
    ],
)
def test_what_is_not_around_one_text_is_refused(
    gpt2: dict[str, Any], tmp_path: Path, processor: dict[str, Any], field: str
) -> None:
    written(tmp_path, {**gpt2, "post_processor": processor})
    with pytest.raises(InvalidModel, match=field):
        load(tmp_path, {})
