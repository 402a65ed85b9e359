"""Incremental decoding: token ids in, text out, exactly the text of decoding all ids at once."""

from __future__ import annotations

import codecs
from collections.abc import Collection

from blink_server.text.tokenizers import Tokenizer

_NEW_DECODER = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one sequence, as it grows. Each token costs time in its own length only.

    Bytes of a character that is not complete yet are held back, so no U+FFFD appears that the
    whole text would not have. Text is that of a continuation: a leading space stays.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        shown: Collection[str] = (),
    ) -> None:
        """`shown`: names of special tokens that are not skipped."""
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        if shown:
            self._skipped = frozenset(
                id_ for id_ in self._skipped if tokenizer.token_text(id_) not in shown
            )
        self._decoder = _NEW_DECODER(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; "" while a character is still incomplete."""
        if token_id in self._skipped:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that `push` takes from this id; empty for a skipped special token."""
        return b"" if token_id in self._skipped else self._tokenizer.token_bytes(token_id)

    @property
    def pending(self) -> int:
        """Bytes held back: the start of a character."""
        return len(self._decoder.getstate()[0])

    def finish(self) -> str:
        """What is held back, as U+FFFD; the sequence has ended."""
        return self._decoder.decode(b"", final=True)
