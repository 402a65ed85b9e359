from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from blink_server.bench.prompts import Count, TextPrompts, file_count, random_ids
from blink_server.errors import BlinkError
from blink_server.testing.tiny_tokenizer import byte_level_tokenizer


@pytest.fixture
def bytes_count(tmp_path: Path) -> Count:
    """A tokenizer in which few words are one token."""
    (tmp_path / "tokenizer.json").write_text(byte_level_tokenizer(), encoding="utf-8")
    return file_count(tmp_path / "tokenizer.json")


async def words_count(text: str) -> int:
    """A template of three tokens around, a token a word, long words two, and pairs that merge."""
    words = text.split()
    merged = sum(a[-1] == b[0] for a, b in itertools.pairwise(words))
    return 3 + sum(1 + (len(word) > 5) for word in words) - merged // 5


LENGTHS = [4, 5, 17, 64, 301]


async def test_prompts_have_exactly_the_tokens_asked_for(bytes_count: Count) -> None:
    for count in (bytes_count, words_count):
        prompts = await (await TextPrompts.prepare(count)).make(LENGTHS, [1])
        assert await asyncio.gather(*map(count, prompts)) == LENGTHS


async def test_prompts_are_those_of_their_seed(bytes_count: Count) -> None:
    maker = await TextPrompts.prepare(bytes_count)
    one = await maker.make([40] * 20, [1, 2])
    assert one == await maker.make([40] * 20, [1, 2])
    assert len({prompt[:12] for prompt in one}) > 15  # nothing for a prefix cache
    assert not set(one) & set(await maker.make([40] * 20, [1, 3]))


async def test_a_length_below_the_templates_is_refused() -> None:
    maker = await TextPrompts.prepare(words_count)
    with pytest.raises(BlinkError, match="exactly 3 tokens; 3 of them"):
        await maker.make([3], [1])


async def test_a_tokenizer_without_small_tokens_is_refused() -> None:
    async def count(text: str) -> int:
        return 2 * len(text)

    with pytest.raises(BlinkError, match="--prompt-ids"):
        await TextPrompts.prepare(count)


def test_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BlinkError, match="is no tokenizer"):
        file_count(tmp_path / "tokenizer.json")


def test_ids() -> None:
    prompts = random_ids([3, 500], 10, [1])
    assert [len(prompt) for prompt in prompts] == [3, 500]
    assert set(prompts[1]) == set(range(10))
