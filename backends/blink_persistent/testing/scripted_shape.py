"""Limits of a scripted engine and of the ring before it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from blink_persistent import _native
from blink_persistent.graph_grid import MIXED, GraphGrid, default_grid
from blink_persistent.graph_lookup import decode_lookup, mixed_lookup, prefill_lookup

MAX_LOGPROBS = 3  # entries of a log-probability record that each slot has room for


@dataclass(frozen=True, slots=True)
class ScriptedShape:
    """Limits of the scripted engine and of its ring. Lengths are tokens; `block_size` holds for
    movable rows, others have one slab of `context_length` each. With `tells_phases` entries that
    decode steps computed differ from those by prefill, as a real engine's rounding makes them.
    Mixed keys, of up to `max_mixed_tokens` (0: none), hold `max_mixed_rows` at most, and as many
    sequences as prefill keys or as `mixed_sequences`."""

    ranges: int = 1
    slots_per_range: int = 256
    rows_movable: bool = True
    max_rows: int = 4
    max_sequences: int = 2
    max_prefill_tokens: int = 32
    prefill_chunk: int = 0
    max_mixed_tokens: int = 0
    max_mixed_rows: int = 1 << 16
    mixed_sequences: int = 1 << 16
    token_granularity: int = 8
    context_length: int = 96
    vocabulary_size: int = 101
    block_size: int = 4
    block_count: int = 64
    eos_token_id: int = 2
    eos_every: int = 0
    poison_token: int = -1
    tells_phases: bool = False
    deterministic: bool = False
    epoch: int = 1

    @property
    def grid(self) -> GraphGrid:
        """The graph grid of the engine."""
        grid = default_grid(
            self.max_rows,
            self.max_prefill_tokens,
            max_sequences=self.max_sequences,
            max_mixed_tokens=self.max_mixed_tokens,
        )
        plain = grid.without_mixed().keys
        mixed = (
            replace(key, sequences=min(key.sequences, self.mixed_sequences))
            for _, key in grid.of_phase(MIXED)
            if key.rows <= self.max_mixed_rows
        )
        return GraphGrid((*plain, *mixed))

    @property
    def rule(self) -> _native.ScriptedRule:
        """The rule that gives the tokens."""
        return _native.ScriptedRule(self.vocabulary_size, self.eos_token_id, self.eos_every)

    @property
    def output_words(self) -> int:
        """Words of a slot's part of the output arena: tokens, then log-probabilities."""
        return self.context_length * (1 + _native.logprob_words(MAX_LOGPROBS))

    def ring(self) -> _native.RingShape:
        """A ring with room for `context_length` words of everything in each slot."""
        words = self.slots_per_range * self.context_length
        outputs = self.slots_per_range * self.output_words
        return _native.RingShape(self.ranges, self.slots_per_range, words, outputs, words)

    def host_engine(self) -> _native.HostEngine:
        """Step buffers and lookup tables of these limits."""
        grid = self.grid
        block_size = self.block_size if self.rows_movable else self.context_length
        return _native.make_engine(
            graphs=[(key.phase, key.sequences, key.tokens, key.rows) for key in grid.keys],
            decode_lookup=decode_lookup(grid).tolist(),
            prefill_lookup=prefill_lookup(grid, self.token_granularity).ravel().tolist(),
            mixed_lookup=mixed_lookup(grid, self.token_granularity).ravel().tolist(),
            eos_token_ids=[self.eos_token_id],
            max_rows=self.max_rows,
            max_sequences=self.max_sequences,
            max_prefill_tokens=self.max_prefill_tokens,
            token_granularity=self.token_granularity,
            prefill_chunk=self.prefill_chunk,
            mixed_sequences=grid.mixed_sequences,
            max_mixed_tokens=grid.max_mixed_tokens,
            context_length=self.context_length,
            vocabulary_size=self.vocabulary_size,
            block_size=block_size,
            block_count=self.block_count if self.rows_movable else 0,
            max_blocks=-(-self.context_length // block_size),
            rows_movable=self.rows_movable,
            deterministic=self.deterministic,
        )
