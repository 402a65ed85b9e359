"""The tokenizer `blink_bpe`: the ids and texts of the `tokenizers` library, found natively."""

from __future__ import annotations

from collections.abc import Sequence

from blink_bpe._bpe import Tokenizer as NativeTokenizer
from blink_bpe.recipe import read_recipe
from blink_server.errors import InvalidRequest
from blink_server.text.tokenizers import HuggingFaceTokenizer


class BlinkBpeTokenizer:
    """Fulfils `blink_server.text.tokenizers.Tokenizer`; may be used from any thread."""

    def __init__(self, understood: HuggingFaceTokenizer) -> None:
        """Take over a tokenizer.json that the library has read, and need the library no more.

        Raises `UnsupportedTokenizerError` for what is not supported.
        """
        recipe = read_recipe(understood.document())
        self.vocabulary_size = understood.vocabulary_size
        self.longest_token = understood.longest_token
        self.special_ids = understood.special_ids
        self._names = recipe.names
        self._prefix = recipe.prefix
        self._suffix = recipe.suffix
        self._native = NativeTokenizer(
            pattern=recipe.pattern,
            ignore_merges=recipe.ignore_merges,
            tokens=recipe.tokens,
            mergeable=recipe.mergeable,
            unknown=recipe.unknown,
            rules=recipe.rules,
            added=recipe.added,
            normalized=recipe.normalized,
            special=recipe.special,
            normalize=recipe.normalize,
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """See `Tokenizer.encode`; releases the interpreter lock while it works on a long text."""
        try:
            ids = self._native.encode(text)
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the text has a lone surrogate (position {error.start}), which no encoding allows"
            ) from error
        if add_special_tokens and (self._prefix or self._suffix):
            return [*self._prefix, *ids, *self._suffix]
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """See `Tokenizer.decode`."""
        return self._native.decode(ids, skip_special=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        return self._native.token_bytes(token_id)

    def token_text(self, token_id: int) -> str | None:
        """See `Tokenizer.token_text`."""
        return self._names[token_id] if 0 <= token_id < len(self._names) else None
