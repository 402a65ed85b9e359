"""Text to token ids and back: the tokenizer protocol and the built-in `huggingface` tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from blink_server.errors import InvalidModel, InvalidRequest, Problem
from blink_server.text.token_bytes import UnsupportedDecoderError, piece_converter


class Tokenizer(Protocol):
    """One version's tokenizer, shared by a worker's requests; its methods may run in any thread.

    `longest_token`: no token stands for more bytes of text. A text of more than so many bytes for
    each token of the context is refused without being encoded.
    """

    vocabulary_size: int
    longest_token: int
    special_ids: frozenset[int]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`. `add_special_tokens` lets the tokenizer add its own (a BOS id).

        Raises `InvalidRequest` for text that cannot be encoded (lone surrogates).
        """
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids` on their own; incomplete UTF-8 becomes U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes `token_id` adds to a text; empty for an id outside the vocabulary."""
        ...

    def token_text(self, token_id: int) -> str | None:
        """The vocabulary's name of an id ("<|im_end|>"), None outside the vocabulary."""
        ...


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    """A panic of the library is no `Exception`, and would end a whole process."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # a type that no module exports
            raise
        raise RuntimeError(f"the tokenizers library has panicked: {error}") from error


class HuggingFaceTokenizer:
    """A tokenizer.json read by the `tokenizers` library."""

    def __init__(self, serialized: str) -> None:
        """Build from the text of a tokenizer.json.

        Raises ValueError where the text is not a tokenizer, `UnsupportedDecoderError` where its
        decoder cannot be applied token by token.
        """
        try:
            with _panics_as_errors():
                self._tokenizer = tokenizers.Tokenizer.from_str(serialized)
        except Exception as error:  # the library raises bare Exception
            raise ValueError(str(error)) from error
        # A prompt is never cut or padded behind its sender's back.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        document = json.loads(serialized)
        self._to_bytes = piece_converter(document.get("decoder"))
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocabulary_size = max(vocabulary.values(), default=-1) + 1
        self.longest_token = max((len(piece.encode()) for piece in vocabulary), default=0)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def load(cls, directory: Path, options: Mapping[str, Any]) -> HuggingFaceTokenizer:
        """Read `options["file"]` (default tokenizer.json) of a version directory.

        Raises `InvalidModel` naming the file and what is wrong with it.
        """
        path = directory / options.get("file", "tokenizer.json")
        try:
            return cls(path.read_text(encoding="utf-8"))
        except OSError as error:
            problem = Problem(path, "", None, f"cannot be read: {error.strerror}")
        except UnsupportedDecoderError as error:
            problem = Problem(path, "decoder", None, str(error))
        except ValueError as error:
            problem = Problem(path, "", None, f"is not a tokenizer: {error}")
        raise InvalidModel([problem])

    def document(self) -> dict[str, Any]:
        """The tokenizer.json as the library understands it: complete, and in its newest form."""
        document: dict[str, Any] = json.loads(self._tokenizer.to_str())
        if isinstance(document["model"].get("vocab"), dict):
            # Of several tokens of one id the library writes one only.
            document["model"]["vocab"] = self._tokenizer.get_vocab(with_added_tokens=False)
        return document

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """See `Tokenizer.encode`; releases the interpreter lock while it works."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the text has a lone surrogate (position {error.start}), which no encoding allows"
            ) from error
        # Of the library's calls only those for batches release the lock.
        with _panics_as_errors():
            [encoding] = self._tokenizer.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """See `Tokenizer.decode`."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        known = self._bytes.get(token_id)
        if known is None:
            piece = self._tokenizer.id_to_token(token_id)
            known = b"" if piece is None else self._to_bytes(piece)
            self._bytes[token_id] = known
        return known

    def token_text(self, token_id: int) -> str | None:
        """See `Tokenizer.token_text`."""
        text: str | None = self._tokenizer.id_to_token(token_id)
        return text
