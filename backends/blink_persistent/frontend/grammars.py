"""Grammars of one session: made into tables beside the event loop, held in the range's arena.

A table is in the arena as long as a request uses it; equal grammars share it. Made tables are kept
for a while in this process's memory, so that the next request of the kind has only to copy one.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from blink_persistent import _native
from blink_persistent.frontend.arena import Arena
from blink_server.backend import Grammar, SessionLimits, TokenBytes
from blink_server.errors import InvalidRequest, Overloaded

BUILD_SECONDS = 5.0
_CACHE_BYTES = 64 << 20

Table = npt.NDArray[np.int32]


class GrammarSpan(NamedTuple):
    """Where a table lies in the aux arena, in words; no words: any text."""

    offset: int = 0
    words: int = 0


@dataclass(slots=True)
class _Held:
    span: GrammarSpan
    users: int


class GrammarStore:
    """All calls on the session's event loop."""

    def __init__(
        self, arena: Arena, limits: SessionLimits, write: Callable[[int, Table], None]
    ) -> None:
        """`arena`: the range's aux arena; `write(offset, table)` puts a table into its memory."""
        self._arena = arena
        self._limits = limits
        self._write = write
        self._held: dict[str, _Held] = {}
        self._made: OrderedDict[str, Table] = OrderedDict()
        self._made_bytes = 0
        self._making: dict[str, asyncio.Future[Table]] = {}
        self._tries: weakref.WeakKeyDictionary[TokenBytes, _native.TokenTrie]
        self._tries = weakref.WeakKeyDictionary()

    @property
    def held(self) -> int:
        """Tables in the arena."""
        return len(self._held)

    async def table(self, grammar: Grammar) -> Table:
        """Its table, made in a thread where it is not known. Raises `InvalidRequest`."""
        known = self._made.get(grammar.digest)
        if known is not None:
            self._made.move_to_end(grammar.digest)
            return known
        making = self._making.get(grammar.digest)
        if making is None:
            making = asyncio.ensure_future(asyncio.to_thread(self._make, grammar))
            self._making[grammar.digest] = making
            making.add_done_callback(lambda made: self._keep(grammar.digest, made))
        try:
            return await asyncio.shield(making)
        except ValueError as error:
            raise InvalidRequest(f"{grammar.param}: {error}", param=grammar.param) from None

    def hold(self, digest: str, table: Table) -> GrammarSpan:
        """Put the table into the arena, or share the one that is there; `release` gives it back.

        Raises `Overloaded` where other grammars leave no room for it now.
        """
        held = self._held.get(digest)
        if held is None:
            offset = self._arena.allocate(len(table))
            if offset is None:
                raise Overloaded("no memory is free now for the grammar of another request")
            self._write(offset, table)
            held = self._held[digest] = _Held(GrammarSpan(offset, len(table)), 0)
        held.users += 1
        return held.span

    def release(self, digest: str) -> None:
        """A request that holds the table has ended."""
        held = self._held[digest]
        held.users -= 1
        if held.users == 0:
            del self._held[digest]
            self._arena.free(held.span.offset)

    @property
    def _most_words(self) -> int:
        """A table's longest: two of them fit, beside the lists of all other requests."""
        return self._arena.words // 2

    def _make(self, grammar: Grammar) -> Table:
        trie = self._tries.get(grammar.tokens)
        if trie is None:
            trie = self._tries[grammar.tokens] = _trie(grammar.tokens, self._limits)
        try:
            return _native.build_grammar(
                trie,
                grammar.class_of,
                grammar.next,
                grammar.accepting,
                most_words=self._most_words,
                seconds=BUILD_SECONDS,
            )
        except _native.GrammarTooLarge:
            mebibytes = 4 * self._most_words / 2**20
            raise ValueError(f"needs tables of more than {mebibytes:.3g} MiB") from None
        except _native.GrammarTooSlow:
            milliseconds = 1000 * BUILD_SECONDS
            raise ValueError(f"needs more than {milliseconds:.0f} ms for its tables") from None
        except _native.GrammarUnwritable:
            raise ValueError("the model's vocabulary cannot spell it") from None

    def _keep(self, digest: str, made: asyncio.Future[Table]) -> None:
        del self._making[digest]
        if made.cancelled() or made.exception() is not None:
            return
        table = made.result()
        self._made[digest] = table
        self._made_bytes += table.nbytes
        while self._made_bytes > _CACHE_BYTES and len(self._made) > 1:
            _, oldest = self._made.popitem(last=False)
            self._made_bytes -= oldest.nbytes


def _trie(tokens: TokenBytes, limits: SessionLimits) -> _native.TokenTrie:
    """The vocabulary of the engine: as long as its logits, end-of-sequence ids without bytes."""
    lengths = np.zeros(limits.vocabulary_size, np.uint64)
    known = np.diff(tokens.offsets)[: limits.vocabulary_size]
    lengths[: len(known)] = known
    ends = [token for token in limits.eos_token_ids if token < len(known)]
    keep = np.ones(len(known), bool)
    keep[ends] = False
    kept = np.repeat(keep, known.astype(np.int64))
    data = tokens.data[: int(known.sum())][kept]
    lengths[ends] = 0
    offsets = np.concatenate((np.zeros(1, np.uint64), np.cumsum(lengths, dtype=np.uint64)))
    return _native.TokenTrie(data, offsets)
