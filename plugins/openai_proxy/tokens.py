"""A tokenizer that has nothing to decide: one token is one byte of UTF-8.

Ids below `FIRST_BYTE` are the other server's own: a prompt given as token ids goes on as such.
"""

from __future__ import annotations

from collections.abc import Sequence

from blink_server.errors import InvalidRequest

FIRST_BYTE = 1 << 30


class TextTokenizer:
    """Fulfils `Tokenizer`."""

    vocabulary_size = FIRST_BYTE + 256
    longest_token = 1
    special_ids: frozenset[int] = frozenset()

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The bytes of `text`, each as a token id; the other server adds what is special."""
        try:
            return [FIRST_BYTE + byte for byte in text.encode()]
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the text has a lone surrogate (position {error.start}), which no encoding allows"
            ) from error

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text again."""
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The byte; nothing for the other server's ids, whose text it alone knows."""
        byte = token_id - FIRST_BYTE
        return bytes([byte]) if 0 <= byte < 256 else b""

    def token_text(self, token_id: int) -> str | None:
        """The byte as a character of Latin-1."""
        return self.token_bytes(token_id).decode("latin-1") or None
