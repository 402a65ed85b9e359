"""Byte-level BPE: text to token ids and back."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


class Tokenizer:
    def __init__(self, *, pattern: str, ignore_merges: bool, tokens: list[bytes], mergeable: Sequence[int], unknown: int | None, rules: Annotated[NDArray[numpy.uint32], dict(shape=(None, 4), order='C', device='cpu', writable=False)], added: Sequence[tuple[str, int, bool, bool, bool]], normalized: Sequence[tuple[str, int, bool, bool, bool]], special: Sequence[int], normalize: object | None) -> None:
        """
        `pattern`: gpt2, gpt2_digits, llama3 or qwen2. `tokens`: bytes by id, none for an id that is no token.
        `mergeable`: ids that words can become. `unknown`: what a byte without a token becomes, or None: it is dropped.
        `rules`: uint32 [rules, 4] of left, right, rank, result.
        `added`, `normalized`: (content, id, single_word, lstrip, rstrip) of the tokens that are found in
        text as it is, and of those found after `normalize`, which takes and returns text, or None.
        """

    def encode(self, text: str) -> list[int]:
        """
        Ids of a text. Raises UnicodeEncodeError for lone surrogates. Releases the interpreter lock
        for texts of more than 1,024 bytes.
        """

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """
        The text of ids; incomplete UTF-8 becomes U+FFFD, ids that are no token nothing.
        """

    def token_bytes(self, id: int) -> bytes:
        """The bytes of one token; none for an id that is no token."""

    @property
    def classifier(self) -> str:
        """How bytes are classified: avx2, neon or plain."""
