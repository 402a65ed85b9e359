from __future__ import annotations

import pytest

from blink_server.errors import InvalidRequest
from blink_server.http.bad_words import bias_against
from blink_server.testing.tiny_tokenizer import byte_level_tokenizer, sentencepiece_tokenizer
from blink_server.text.tokenizers import HuggingFaceTokenizer


@pytest.fixture(params=[byte_level_tokenizer, sentencepiece_tokenizer])
def tokenizer(request: pytest.FixtureRequest) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(request.param())


def test_a_word_is_kept_out_wherever_it_stands(tokenizer: HuggingFaceTokenizer) -> None:
    bias = bias_against(["a"], tokenizer)
    assert set(bias.values()) == {-100.0}
    texts = {tokenizer.token_text(token) for token in bias}
    assert texts <= {"a", "▁a", "Ġa"}
    assert bias


def test_a_word_after_a_space_is_another_token() -> None:
    tokenizer = HuggingFaceTokenizer(byte_level_tokenizer())
    names = (tokenizer.token_text(token) for token in range(tokenizer.vocabulary_size))
    spaced = {name[1:] for name in names if name and name.startswith("Ġ")}
    word = next(
        w for w in sorted(spaced) if w and len(tokenizer.encode(w, add_special_tokens=False)) == 1
    )
    bias = bias_against([word], tokenizer)
    assert {tokenizer.token_text(token) for token in bias} == {word, f"Ġ{word}"}


def test_a_word_of_several_tokens_is_refused_by_name(tokenizer: HuggingFaceTokenizer) -> None:
    with pytest.raises(InvalidRequest, match="bad_words has 'a好b', which is not one token"):
        bias_against(["a", "a好b"], tokenizer)
