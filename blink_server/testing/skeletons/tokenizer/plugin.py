"""The tokenizer `my_plugin`: a byte is a token. Replace it by yours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blink_server.errors import InvalidRequest
from blink_server.hookspecs import Schema, TokenizerLoader, hookimpl

END = 256  # the only special token


class MyTokenizer:
    """Fulfils `blink_server.text.tokenizers.Tokenizer`."""

    vocabulary_size = 257
    longest_token = 1
    special_ids = frozenset({END})

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            return list(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"the text cannot be encoded: {error}") from error

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        shown = [each for each in ids if not (skip_special_tokens and each in self.special_ids)]
        return b"".join(
            b"<end>" if each == END else self.token_bytes(each) for each in shown
        ).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def token_text(self, token_id: int) -> str | None:
        if token_id == END:
            return "<end>"
        return bytes([token_id]).decode("latin-1") if token_id < 256 else None


@hookimpl
def blink_tokenizers() -> Mapping[str, TokenizerLoader]:
    def load(version_directory: Path, options: Mapping[str, Any]) -> MyTokenizer:
        # Read options["file"] of the version directory here; raise InvalidModel naming it.
        return MyTokenizer()

    return {"my_plugin": load}


@hookimpl
def blink_option_schemas() -> Mapping[str, Mapping[str, Schema]]:
    return {"tokenizer": {"my_plugin": {"additionalProperties": False, "properties": {}}}}
