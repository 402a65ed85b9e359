"""The tokenizer built from a GGUF file's vocabulary, against the original where there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from blink_server.errors import InvalidModel
from blink_server.importers.gguf import open_gguf
from blink_server.importers.pull import pull
from blink_server.testing.tiny_gguf import SPECIAL_TOKENS, write_tiny_gguf
from blink_server.text.chat_template import ChatTemplate

REFERENCE = Path(__file__).parents[2] / "parity" / "reference" / "smollm2_greedy.json"

NORMAL = int(gguf.TokenType.NORMAL)
CONTROL = int(gguf.TokenType.CONTROL)
USER_DEFINED = int(gguf.TokenType.USER_DEFINED)
UNUSED = int(gguf.TokenType.UNUSED)
BYTE = int(gguf.TokenType.BYTE)


def tokenizer_of(path: Path, **arguments: Any) -> Tokenizer:
    write_tiny_gguf(path, **arguments)
    return Tokenizer.from_str(open_gguf(path).tokenizer_json)


def refusal(path: Path, **arguments: Any) -> str:
    write_tiny_gguf(path, **arguments)
    with pytest.raises(InvalidModel) as refused:
        open_gguf(path)
    return str(refused.value)


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    """What the pre-tokenizer cuts a text into."""
    return [text[start:end] for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "tekken", "qwen2"])
def test_text_survives_the_way_there_and_back(tmp_path: Path, pre: str) -> None:
    tokenizer = tokenizer_of(
        tmp_path / "m.gguf", pre=pre, metadata={"tokenizer.ggml.add_bos_token": False}
    )
    text = "Hello the capital,\r\n\tcity 2024  — naïve 今天 🎉\x00 don't"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


TEXT = "I'm I'M A12345 x\n\n 7 (a)..\r\n  don't½"


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        (
            "gpt-2",
            "I|'m| I|'|M| A|12345| x|\n\n| 7| (|a|)..|\r\n | don|'t|½",
        ),
        (
            "smollm",
            "I|'m| I|'|M| A|1|2|3|4|5| x|\n\n |7| (|a|)..|\r\n | don|'t|½",
        ),
        (
            "llama-bpe",
            "I|'m| I|'M| A|123|45| x|\n\n| |7| (|a|)..\r\n| | don|'t|½",
        ),
        (
            "tekken",
            "I|'m| I|'M| A|1|2|3|4|5| x|\n\n| |7| (|a|)..\r\n| | don|'t|½",
        ),
        (
            "qwen2",
            "I|'m| I|'M| A|1|2|3|4|5| x|\n\n| |7| (|a|)..\r\n| | don|'t|½",
        ),
    ],
)
def test_each_pre_tokenizer_cuts_words_and_digits_its_own_way(
    tmp_path: Path, pre: str, expected: str
) -> None:
    assert words(tokenizer_of(tmp_path / "m.gguf", pre=pre), TEXT) == expected.split("|")


def test_mistrals_words_break_before_capitals(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path / "m.gguf", pre="tekken")
    assert words(tokenizer, "camelCaseHTTPServer über/\n") == (
        ["camel", "Case", "HTTPServer", " über", "/\n"]
    )


def test_merges_are_applied_and_ids_are_the_files(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    model = write_tiny_gguf(path)
    tokenizer = Tokenizer.from_str(open_gguf(path).tokenizer_json)

    assert tokenizer.get_vocab(with_added_tokens=True) == {
        text: token for token, text in enumerate(model.tokens)
    }
    encoded = tokenizer.encode("<|im_start|>user\nHello the capital<|im_end|>")
    assert encoded.tokens == [
        "<|im_start|>",
        "user",
        "Ċ",
        "Hello",
        "Ġthe",
        "Ġcapital",
        "<|im_end|>",
    ]
    assert encoded.ids == [model.tokens.index(text) for text in encoded.tokens]


def test_only_control_tokens_are_special(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tokens = write_tiny_gguf(path).tokens
    types = [CONTROL if text in SPECIAL_TOKENS else NORMAL for text in tokens]
    types[0], types[-1] = USER_DEFINED, UNUSED
    tokenizer = tokenizer_of(path, metadata={"tokenizer.ggml.token_type": types})

    added = tokenizer.get_added_tokens_decoder()
    assert {token: added[token].special for token in added} == {0: False, 1: True, 2: True}
    ids = tokenizer.encode("a<|endoftext|>b<|im_end|>").ids
    assert ids[1] == 0
    assert tokenizer.decode(ids) == "a<|endoftext|>b"


@pytest.mark.parametrize(
    ("pre", "add_bos", "first"),
    [
        ("smollm", None, "H"),
        ("smollm", True, "<|im_start|>"),
        ("llama-bpe", None, "<|im_start|>"),
        ("llama-bpe", False, "H"),
    ],
)
def test_text_begins_with_bos_where_the_model_wants_it(
    tmp_path: Path, pre: str, add_bos: bool | None, first: str
) -> None:
    tokenizer = tokenizer_of(
        tmp_path / "m.gguf", pre=pre, metadata={"tokenizer.ggml.add_bos_token": add_bos}
    )
    assert tokenizer.encode("Hi").tokens[0] == first
    assert tokenizer.encode("Hi", add_special_tokens=False).tokens[0] == "H"
    bos = 1 if first == "<|im_start|>" else None
    assert open_gguf(tmp_path / "m.gguf").bos_token_id == bos


def test_a_word_that_is_a_token_is_taken_whole_where_the_model_wants_it(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "m.gguf")
    tokens = [*model.tokens, "xyz"]
    types = [CONTROL if text in SPECIAL_TOKENS else NORMAL for text in tokens]
    arguments = {
        "metadata": {
            "llama.vocab_size": None,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.add_bos_token": False,
        },
        "tensors": {"token_embd.weight": np.zeros((len(tokens), 64), np.float32)},
    }
    whole = tokenizer_of(tmp_path / "llama.gguf", pre="llama-bpe", **arguments)
    merged = tokenizer_of(tmp_path / "qwen.gguf", pre="qwen2", **arguments)
    assert whole.encode("xyz").tokens == ["xyz"]
    assert merged.encode("xyz").tokens == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model: is 'bert'; supported are"),
        (
            {"tokenizer.ggml.pre": "bloom"},
            "pre: is 'bloom'; supported are 'gpt-2', 'smollm', 'llama-bpe', 'tekken', 'qwen2'",
        ),
        ({"tokenizer.ggml.pre": None}, "tokenizer.ggml.pre: is missing"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens: is missing"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokens: must be an array of strings"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges: is missing"),
        ({"tokenizer.ggml.merges": ["a b"]}, "merges: entry 0, 'a b', must join two tokens"),
        ({"tokenizer.ggml.merges": ["ab"]}, "merges: entry 0, 'ab', must join two tokens"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "must have one entry for each of 303 tokens"),
        (
            {"tokenizer.ggml.token_type": [NORMAL] * 302 + [BYTE]},
            "token_type: entry 302 ('Ġanswer') is 6, not a type",
        ),
        (
            {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None},
            "tokenizer.ggml.bos_token_id: is missing, and add_bos_token set",
        ),
        ({"tokenizer.ggml.add_bos_token": "yes"}, "add_bos_token: is 'yes'; must be a boolean"),
    ],
)
def test_vocabularies_that_cannot_be_used_are_refused_by_name(
    tmp_path: Path, metadata: dict[str, Any], message: str
) -> None:
    assert message in refusal(tmp_path / "m.gguf", metadata=metadata)


def test_a_token_that_is_there_twice_is_named(tmp_path: Path) -> None:
    tokens = write_tiny_gguf(tmp_path / "m.gguf").tokens
    doubled = [*tokens[:-1], "Ġthe"]
    text = refusal(tmp_path / "m.gguf", metadata={"tokenizer.ggml.tokens": doubled})
    assert "tokenizer.ggml.tokens: holds 'Ġthe' twice" in text


@pytest.mark.slow
def test_smollm2_gives_the_original_tokenizers_ids() -> None:
    checkpoint = open_gguf(pull("smollm2-135m-instruct"))
    assert checkpoint.chat_template is not None
    template = ChatTemplate(checkpoint.chat_template)
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
    cases = json.loads(REFERENCE.read_text(encoding="utf-8"))["cases"]
    assert len(cases) == 12
    for case in cases:
        prompt = case["prompt"]
        if case["chat"]:
            prompt = template.render([{"role": "user", "content": prompt}])
        assert tokenizer.encode(prompt).ids == case["prompt_ids"]
        assert tokenizer.decode(case["prompt_ids"], skip_special_tokens=False) == prompt
        assert tokenizer.decode(case["tokens"]) == case["text"]
