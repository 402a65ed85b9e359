"""GGUF's SentencePiece BPE ("llama"): Llama 2's tokenizer and the first Mistrals'.

Pieces have scores, and text is merged to the best-scored piece first; what has no piece is
spelled in bytes. The `tokenizers` library merges by a list of pairs instead: every pair of
pieces that joins to a third, in the order of that third's score, does the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from gguf import TokenType

from blink_server.importers.gguf_metadata import Metadata
from blink_server.importers.gguf_vocabulary import TokenizerParts, read_tokens, read_types

_SCORES = "tokenizer.ggml.scores"
_UNKNOWN = "tokenizer.ggml.unknown_token_id"
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def sentencepiece_parts(metadata: Metadata) -> TokenizerParts:
    """Raises `InvalidModel` for scores or types that do not fit the tokens."""
    tokens = read_tokens(metadata)
    types, scores = read_types(metadata, tokens), _read_scores(metadata, tokens)
    unknown = metadata.token_id(_UNKNOWN, len(tokens))
    prefix = metadata.flag("tokenizer.ggml.add_space_prefix", True)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    before = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
    after = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    mergeable = {TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED}
    pieces = {
        text: score
        for text, kind, score in zip(tokens, types, scores, strict=True)
        if kind in mergeable
    }
    return TokenizerParts(
        normalizer={"type": "Sequence", "normalizers": [*before, spaces]},
        pre_tokenizer=None,
        decoder={
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *after,
            ],
        },
        merges=_merges(pieces),
        model={
            "unk_token": None if unknown is None else tokens[unknown],
            "fuse_unk": True,
            "byte_fallback": True,
        },
        add_bos=True,
        has_byte_tokens=True,
    )


def _read_scores(metadata: Metadata, tokens: Sequence[str]) -> list[float]:
    scores = metadata.numbers(_SCORES)
    if len(scores) != len(tokens):
        expected = f"must have one entry for each of {len(tokens)} tokens, has {len(scores)}"
        raise metadata.invalid(_SCORES, expected, show_value=False)
    return scores


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Pairs of pieces that join to a piece, those of the best-scored first."""
    merges = []
    for piece in sorted(scores, key=lambda piece: -scores[piece]):
        for middle in range(1, len(piece)):
            pair = piece[:middle], piece[middle:]
            if pair[0] in scores and pair[1] in scores:
                merges.append(pair)
    return merges
