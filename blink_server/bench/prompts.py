"""Prompts of an exact number of tokens, each another one: no prefix is shared but by chance."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from blink_server.bench.client import CHAT
from blink_server.bench.exchange import Failed, Site, ask_json
from blink_server.errors import BlinkError

A = TypeVar("A")
R = TypeVar("R")

Count = Callable[[str], Awaitable[int]]
"""The tokens that a prompt becomes, with all that is put around it."""

_WORDS = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government number
night point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law
car city name team minute idea body back parent face others level office door
"""
_SINGLE = tuple("aeionst.!?,")  # one token each, also where no word is in the vocabulary
_TRIES = 20
_AT_ONCE = 8


def random_ids(lengths: Sequence[int], vocabulary: int, seed: Sequence[int]) -> list[list[int]]:
    """Prompts of token ids, drawn alike from [0, vocabulary)."""
    random = np.random.default_rng(list(seed))
    return [random.integers(0, vocabulary, length).tolist() for length in lengths]


def server_count(site: Site, route: str, model: str) -> Count:
    """Counts by the server's POST /tokenize, as vLLM and this server have it."""

    async def count(text: str) -> int:
        content: dict[str, object] = {"prompt": text}
        if route == CHAT:
            content = {"messages": [{"role": "user", "content": text}]}
        reply = await ask_json(site, "POST", "/tokenize", {"model": model, **content})
        try:
            return int(reply["count"])
        except (KeyError, TypeError, ValueError):
            raise Failed("protocol", "the answer of /tokenize has no count") from None

    return count


def file_count(path: Path) -> Count:
    """Counts by a tokenizer.json. Of a chat it knows the message alone. Raises BlinkError."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare ones
        raise BlinkError(f"{path}: is no tokenizer.json: {error}") from None

    async def count(text: str) -> int:
        return len(tokenizer.encode(text).ids)

    return count


class TextPrompts:
    """Makes prompts of random words; what words cost is found out once."""

    def __init__(self, count: Count, costs: Mapping[str, int], around: int) -> None:
        self._count = count
        self._costs = costs
        self._around = around

    @classmethod
    async def prepare(cls, count: Count) -> TextPrompts:
        """Ask what each word costs behind another, and what is put around a prompt.

        Raises BlinkError where nothing costs one token, or the server cannot count.
        """
        base = await count("x x")
        pieces = [*(" " + word for word in _WORDS.split()), *_SINGLE]
        counts = await _some_at_once(count, [f"x{piece} x" for piece in pieces])
        costs = {piece: total - base for piece, total in zip(pieces, counts, strict=True)}
        costs = {piece: cost for piece, cost in costs.items() if cost > 0}
        if 1 not in costs.values():
            raise BlinkError("no word is one token; give --prompt-ids VOCABULARY instead")
        return cls(count, costs, await count("x") - 1)

    async def make(self, lengths: Sequence[int], seed: Sequence[int]) -> list[str]:
        """A text for each length, of exactly so many tokens. Raises BlinkError."""
        return await _some_at_once(
            lambda place: self._one(lengths[place], np.random.default_rng([*seed, place])),
            range(len(lengths)),
        )

    async def _one(self, length: int, random: np.random.Generator) -> str:
        pieces: list[str] = []
        missing = max(length - self._around, 1)
        for _ in range(_TRIES):
            self._change(pieces, missing, random)
            text = "".join(pieces).strip()
            if not text:
                break
            missing = length - await self._count(text)
            if missing == 0:
                return text
        raise BlinkError(
            f"no prompt has exactly {length} tokens; {self._around} of them are put around it"
        )

    def _change(self, pieces: list[str], missing: int, random: np.random.Generator) -> None:
        """Take words away, or add some, until `missing` should be 0."""
        while missing < 0 and pieces:
            missing += self._costs[pieces.pop()]
        while missing > 0:
            fitting = [piece for piece, cost in self._costs.items() if cost <= missing]
            # Words do not merge with their neighbours; single characters may.
            fitting = [piece for piece in fitting if piece[0] == " "] or fitting
            pieces.append(fitting[random.integers(len(fitting))])
            missing -= self._costs[pieces[-1]]


async def _some_at_once(call: Callable[[A], Awaitable[R]], over: Iterable[A]) -> list[R]:
    free = asyncio.Semaphore(_AT_ONCE)

    async def one(argument: A) -> R:
        async with free:
            return await call(argument)

    return await asyncio.gather(*(one(argument) for argument in over))
