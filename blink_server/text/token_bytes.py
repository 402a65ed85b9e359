"""The bytes that each token of a `tokenizers` vocabulary stands for.

A generated text is the UTF-8 decoding of its tokens' joined bytes. That makes incremental decoding
exact whatever the split of characters over tokens, and gives log-probabilities their `bytes`.
Decoders of the two families in use are understood: byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM),
and SentencePiece's pieces with or without byte fallback (Llama 2, Gemma, Mistral). Others are
refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

PieceToBytes = Callable[[str], bytes]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnsupportedDecoderError(ValueError):
    """A tokenizer.json's decoder cannot be applied token by token; the message names it."""


@cache
def byte_level_alphabet() -> Mapping[str, int]:
    """Byte by the printable character that byte-level BPE writes for it (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + place): byte for place, byte in enumerate(others)})
    return alphabet


def byte_level_piece(piece: str) -> bytes:
    """Bytes of a byte-level piece; a piece outside the alphabet (an added token) is plain text."""
    alphabet = byte_level_alphabet()
    try:
        return bytes([alphabet[character] for character in piece])
    except KeyError:
        return piece.encode()


def _sentencepiece(replacements: Sequence[tuple[str, str]], byte_fallback: bool) -> PieceToBytes:
    def convert(piece: str) -> bytes:
        if byte_fallback and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match.group(1), 16)])
        for pattern, content in replacements:
            piece = piece.replace(pattern, content)
        return piece.encode()

    return convert


def piece_converter(decoder: Mapping[str, Any] | None) -> PieceToBytes:
    """How a piece of a vocabulary becomes bytes, from the "decoder" object of tokenizer.json.

    Steps that only concern the start of a text (SentencePiece strips one space there) do not
    apply: what is generated always continues a prompt. Raises `UnsupportedDecoderError`.
    """
    steps = [] if decoder is None else _flatten(decoder)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return byte_level_piece
    replacements: list[tuple[str, str]] = []
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)}:
                replacements.append((pattern, content))
            case {"type": "Metaspace", "replacement": str(pattern)}:
                replacements.append((pattern, " "))
            case {"type": "ByteFallback" | "Fuse" | "Strip"}:
                pass
            case _:
                raise UnsupportedDecoderError(f"the decoder {step.get('type')!r} is not supported")
    if not replacements:
        raise UnsupportedDecoderError("needs a decoder: ByteLevel, Metaspace or SentencePiece's")
    return _sentencepiece(replacements, "ByteFallback" in kinds)


def _flatten(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder.get("type") != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _flatten(inner)]
