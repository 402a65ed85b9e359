"""What a tokenizer.json says, in the terms of the native tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import normalizers

from blink_bpe.added_tokens import AddedToken, Normalize, added_entries
from blink_bpe.pre_tokenizers import pattern_name
from blink_bpe.support import require, steps
from blink_server.text.token_bytes import byte_level_alphabet

_NO_UTF8 = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that encoding and decoding depend on; ids index `tokens` and `names`."""

    pattern: str
    normalize: Normalize | None  # applied to text between added tokens
    ignore_merges: bool
    tokens: list[bytes]  # empty for an id that is no token
    names: list[str | None]
    mergeable: list[int]  # ids of tokens that words can become
    unknown: int | None  # what a byte without a token becomes; None: it is dropped
    rules: npt.NDArray[np.uint32]  # [rules, 4]: left, right, rank, result
    added: list[AddedToken]  # found in text as it is
    normalized: list[AddedToken]  # found in normalized text
    special: list[int]
    prefix: list[int]  # what encoding with special tokens puts before and after
    suffix: list[int]


def read_recipe(document: Mapping[str, Any]) -> Recipe:
    """Translate a tokenizer.json, as the `tokenizers` library writes it.

    Raises `UnsupportedTokenizerError` naming the first thing that is not supported.
    """
    model = document["model"]
    _check_model(model)
    _check_decoder(document["decoder"])
    vocabulary: Mapping[str, int] = model["vocab"]
    added = [token for token in document["added_tokens"] if token["content"]]
    normalize = _normalizer(document["normalizer"])
    names = _names(vocabulary, added, normalize)
    pieces = [_piece(name) for name in names]
    mergeable = sorted(id_ for id_ in vocabulary.values() if pieces[id_][1])
    tokens = [token for token, _ in pieces]
    special = {token["content"] for token in added if token["special"]}
    prefix, suffix = _template(document["post_processor"])
    return Recipe(
        pattern=pattern_name(document["pre_tokenizer"]),
        normalize=normalize,
        ignore_merges=bool(model["ignore_merges"]),
        tokens=tokens,
        names=names,
        mergeable=mergeable,
        unknown=_unknown(model, {tokens[id_] for id_ in mergeable}),
        rules=_rules(vocabulary, model["merges"]),
        added=added_entries(token for token in added if not token["normalized"]),
        normalized=added_entries((token for token in added if token["normalized"]), normalize),
        special=[token["id"] for token in added if names[token["id"]] in special],
        prefix=prefix,
        suffix=suffix,
    )


def _check_model(model: Mapping[str, Any]) -> None:
    require(model.get("type") == "BPE", "model.type", model.get("type"), "only BPE is supported")
    for field in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        require(not model[field], f"model.{field}", model[field], "is not supported")
    ids = model["vocab"].values()
    reason = "has two tokens of one id"
    require(len(set(ids)) == len(ids), "model.vocab", f"{len(ids)} tokens", reason)


def _check_decoder(decoder: Mapping[str, Any] | None) -> None:
    kinds = [step["type"] for step in steps(decoder, "decoders")]
    require(kinds == ["ByteLevel"], "decoder", kinds, "only ByteLevel is supported")


def _unknown(model: Mapping[str, Any], tokens: set[bytes]) -> int | None:
    """What a byte without a token becomes; None: nothing, or there is no such byte."""
    missing = [byte for byte in range(256) if bytes([byte]) not in tokens and byte not in _NO_UTF8]
    if not missing:
        return None
    for field in ("byte_fallback", "fuse_unk"):
        reason = f"is not supported for a vocabulary without the byte {missing[0]}"
        require(not model[field], f"model.{field}", model[field], reason)
    name = model["unk_token"]
    if name is None:
        return None
    require(name in model["vocab"], "model.unk_token", name, "is not in the vocabulary")
    return int(model["vocab"][name])


def _names(
    vocabulary: Mapping[str, int],
    added: Sequence[Mapping[str, Any]],
    normalize: Normalize | None,
) -> list[str | None]:
    """Tokens by id; an added token that is found in normalized text goes by its normal form."""
    entries = [(id_, name) for name, id_ in vocabulary.items()]
    for token in added:
        content = token["content"]
        normal = normalize(content) if normalize and token["normalized"] else content
        entries.append((token["id"], normal))
    names: list[str | None] = [None] * (max((id_ for id_, _ in entries), default=-1) + 1)
    for id_, name in entries:
        names[id_] = name
    return names


def _piece(name: str | None) -> tuple[bytes, bool]:
    """A token's bytes, and whether it is written in the byte-level alphabet."""
    if name is None:
        return b"", False
    alphabet = byte_level_alphabet()
    try:
        return bytes([alphabet[character] for character in name]), True
    except KeyError:
        return name.encode(), False


def _rules(
    vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]]
) -> npt.NDArray[np.uint32]:
    rules = [
        (vocabulary[left], vocabulary[right], rank, vocabulary[left + right])
        for rank, (left, right) in enumerate(merges)
    ]
    return np.array(rules, np.uint32).reshape(-1, 4)


def _normalizer(normalizer: Mapping[str, Any] | None) -> Normalize | None:
    kinds = [step["type"] for step in steps(normalizer, "normalizers")]
    require(kinds in ([], ["NFC"]), "normalizer", kinds, "only NFC is supported")
    return normalizers.NFC().normalize_str if kinds else None


def _template(processor: Mapping[str, Any] | None) -> tuple[list[int], list[int]]:
    """Ids that encoding with special tokens puts before and after the text."""
    # ByteLevel changes offsets only, which nobody asks for here.
    parts = [step for step in steps(processor, "processors") if step["type"] != "ByteLevel"]
    kinds = [step["type"] for step in parts]
    reason = "only one TemplateProcessing is supported"
    require(kinds in ([], ["TemplateProcessing"]), "post_processor", kinds, reason)
    return _around(parts[0]) if parts else ([], [])


def _around(template: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    single = template["single"]
    places = [place for place, piece in enumerate(single) if "Sequence" in piece]
    require(len(places) == 1, "post_processor.single", single, "must have the text once")

    def ids(pieces: Sequence[Mapping[str, Any]]) -> Iterator[int]:
        for piece in pieces:
            yield from template["special_tokens"][piece["SpecialToken"]["id"]]["ids"]

    return list(ids(single[: places[0]])), list(ids(single[places[0] + 1 :]))
