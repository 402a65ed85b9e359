"""What every tokenizer must do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from blink_server.errors import InvalidRequest
from blink_server.text.detokenizer import Detokenizer
from blink_server.text.tokenizers import Tokenizer

TEXTS = (
    "",
    " ",
    "Hello",
    "Hello, world! It's 12:30.",
    "  two  spaces\n\n\tand a tab ",
    "naïve 你好 😀 👩‍🚀 é",
    "def f(x):\n    return {'a': [1, 2]}  # done\r\n",
    "a" * 300,
    "\u0000\ufeff\u202e",
)


class TokenizerContract:
    """Override `tokenizer`; `texts` where some cannot come back as they were.

    A tokenizer that normalises texts, or begins them with a space, states in `texts` those that it
    gives back unchanged.
    """

    texts: tuple[str, ...] = TEXTS

    leading_space = False
    """Whether the bytes of a text's first token begin with a space that the text has not."""

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        """The one that is tested."""
        raise NotImplementedError("override the fixture `tokenizer`")

    def encode(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """Without the tokenizer's own special tokens."""
        return tokenizer.encode(text, add_special_tokens=False)

    def _continued(self, text: str) -> str:
        return f" {text}" if text and self.leading_space else text

    def test_every_text_comes_back(self, tokenizer: Tokenizer) -> None:
        for text in self.texts:
            assert tokenizer.decode(self.encode(tokenizer, text)) == text

    def test_the_bytes_of_the_tokens_are_the_text(self, tokenizer: Tokenizer) -> None:
        for text in self.texts:
            ids = self.encode(tokenizer, text)
            assert b"".join(map(tokenizer.token_bytes, ids)).decode() == self._continued(text)

    def test_a_text_that_grows_token_by_token_is_the_whole_text(self, tokenizer: Tokenizer) -> None:
        for text in self.texts:
            growing = Detokenizer(tokenizer)
            pieces = [growing.push(token_id) for token_id in self.encode(tokenizer, text)]
            assert "".join([*pieces, growing.finish()]) == self._continued(text)

    def test_ids_are_within_the_vocabulary(self, tokenizer: Tokenizer) -> None:
        for text in self.texts:
            for special in (False, True):
                ids = tokenizer.encode(text, add_special_tokens=special)
                assert all(0 <= each < tokenizer.vocabulary_size for each in ids)
        assert all(0 <= each < tokenizer.vocabulary_size for each in tokenizer.special_ids)

    def test_no_token_stands_for_more_bytes_than_the_longest(self, tokenizer: Tokenizer) -> None:
        for text in self.texts:
            ids = self.encode(tokenizer, text)
            assert len(text.encode()) <= len(ids) * tokenizer.longest_token

    def test_the_same_text_has_the_same_ids(self, tokenizer: Tokenizer) -> None:
        for text in self.texts:
            assert self.encode(tokenizer, text) == self.encode(tokenizer, text)

    def test_special_tokens_are_skipped_only_where_asked(self, tokenizer: Tokenizer) -> None:
        for token_id in sorted(tokenizer.special_ids)[:8]:
            assert tokenizer.decode([token_id]) == ""
            assert tokenizer.token_text(token_id)
            assert tokenizer.decode([token_id], skip_special_tokens=False)

    def test_what_is_outside_the_vocabulary_is_nothing(self, tokenizer: Tokenizer) -> None:
        outside = tokenizer.vocabulary_size
        assert tokenizer.token_bytes(outside) == b""
        assert tokenizer.token_text(outside) is None

    def test_a_lone_surrogate_is_the_client_s_fault(self, tokenizer: Tokenizer) -> None:
        with pytest.raises(InvalidRequest):
            self.encode(tokenizer, "a\ud800b")
        assert tokenizer.decode(self.encode(tokenizer, self.texts[-1])) == self.texts[-1]

    def test_threads_do_not_disturb_one_another(self, tokenizer: Tokenizer) -> None:
        expected = [self.encode(tokenizer, text) for text in self.texts]
        with ThreadPoolExecutor(4) as pool:
            for _ in range(8):
                found = list(pool.map(lambda text: self.encode(tokenizer, text), self.texts))
                assert found == expected
