"""Tokenizers like those of the families in use: their pre-tokenizers over small vocabularies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _cut(digits: str) -> pre_tokenizers.PreTokenizer:
    pattern = Regex(_WORDS.replace("DIGITS", digits))
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _gpt2(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm2(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )


def _llama3(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = _cut(r"\p{N}{1,3}")


def _qwen2(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _cut(r"\p{N}")


FAMILIES: Mapping[str, Callable[[Tokenizer], None]] = {
    "gpt2": _gpt2,
    "smollm2": _smollm2,
    "llama3": _llama3,
    "qwen2": _qwen2,
}


def trained_tokenizer(family: str, texts: Iterable[str], vocabulary_size: int) -> str:
    """A tokenizer.json of one of `FAMILIES`, trained on `texts`.

    SmolLM2's lacks bytes, Llama 3's takes words that are tokens whole and begins a text with a
    special token: as the originals do.
    """
    tokenizer = Tokenizer(models.BPE())
    FAMILIES[family](tokenizer)
    alphabet = [] if family == "smollm2" else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        initial_alphabet=alphabet,
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<think>", normalized=True, special=False)])
    if family == "llama3":
        start = SPECIAL[0]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, 0)]
        )
    document = json.loads(tokenizer.to_str())
    document["model"]["ignore_merges"] = family == "llama3"
    return json.dumps(document)
