"""
The ring, the host scheduler, the scripted engine and the host sampler.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


LAYOUT_HASH: int = 11463523689978203757

MAX_TOP_LOGPROBS: int = 20

PRIORITIES: int = 4

RANGE_GRANULE: int = 256

SHOWN_GRAPHS: int = 896

MAX_RANGES: int = 64

LAUNCH_WINDOW: int = 120

NO_GRAPH: int = 65535

IGNORE_EOS: int = 1

SUPPRESS_END: int = 2

KEEP_EOS: int = 4

def layout_table() -> dict[str, tuple[int, list[tuple[str, str, int, str]]]]:
    """{struct: (bytes, [(field, C type, offset, writer)])} of ring_layout.h."""

def ticket_after(ticket: int) -> int: ...

def logprob_words(logprobs: int) -> int:
    """4-byte words of one token's log-probability entry."""

def uniform_at(seed: int, position: int) -> float:
    """The random number of a token, in [0, 1)."""

class RingShape:
    def __init__(self, ranges: int, slots_per_range: int, prompt_words: int, output_words: int, aux_words: int) -> None: ...

    @property
    def total_bytes(self) -> int: ...

def create_ring(memory: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], shape: RingShape, epoch: int) -> None:
    """Write an empty ring into zeroed memory."""

class Ring:
    def __init__(self, memory: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

    def submit(self, slot: int, ticket: int) -> None: ...

    def release(self, slot: int, ticket: int) -> None: ...

    def cancel(self, slot: int, ticket: int) -> None: ...

    def submitted(self, slot: int) -> int:
        """The slot's submit word."""

    def accepting(self) -> bool: ...

    def status(self, slot: int) -> tuple[int, int, int]:
        """(ticket, epoch, word) of one slot."""

    def read_statuses(self, first: int, out: Annotated[NDArray[numpy.uint64], dict(shape=(None, 2), order='C', device='cpu')]) -> None: ...

    def read_words(self, first: int, out: Annotated[NDArray[numpy.uint32], dict(shape=(None, 4), order='C', device='cpu')]) -> None:
        """
        Copy the frontend words of slots [first, first + n) into uint32 [n, 4].
        """

    def publish(self, slots: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu')], statuses: Annotated[NDArray[numpy.uint64], dict(shape=(None, 2), order='C', device='cpu')]) -> None:
        """An agent's: write these slots' statuses, each state word last."""

class HostEngine:
    def arrays(self, phase: int) -> dict[str, NDArray[numpy.int32]]: ...

    @property
    def tables_address(self) -> int:
        """
        Of its EngineTables (provisioned.h), for code that is compiled beside this module.
        """

def make_engine(*, graphs: Sequence[tuple[int, int, int, int]], decode_lookup: Sequence[int], prefill_lookup: Sequence[int], mixed_lookup: Sequence[int] = [], eos_token_ids: Sequence[int], max_rows: int, max_sequences: int, max_prefill_tokens: int, token_granularity: int, prefill_chunk: int = 0, mixed_sequences: int = 0, max_mixed_tokens: int = 0, context_length: int, vocabulary_size: int, block_size: int, block_count: int, max_blocks: int, rows_movable: bool, deterministic: bool = False) -> HostEngine: ...

class HostSampler:
    def __init__(self, engine: HostEngine) -> None: ...

    def sample(self, phase: int, count: int, logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None: ...

    def sample_one(self, logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], *, prompt: Sequence[int], output: Sequence[int], bias: Sequence[tuple[int, float]], stop: Sequence[int], seed: int, temperature: float, top_p: float, top_k: int, min_p: float, repetition_penalty: float, presence_penalty: float, frequency_penalty: float, logprobs: int, flags: int, grammar: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> tuple[int, float, list[tuple[int, float]]]: ...

class ScriptedRule:
    def __init__(self, vocabulary_size: int, eos_token_id: int, eos_every: int) -> None: ...

def scripted_continuation(rule: ScriptedRule, prompt: Sequence[int], count: int, min_tokens: int = 0, tells_phases: bool = False) -> list[int]:
    """
    The tokens that the scripted rule gives after a prompt, computed plainly; goes on past end-of-sequence.
    """

class ScriptedEngine:
    def __init__(self, engine: HostEngine, rule: ScriptedRule) -> None: ...

    @property
    def step_microseconds(self) -> int: ...

    @step_microseconds.setter
    def step_microseconds(self, arg: int, /) -> None: ...

    @property
    def poison_token(self) -> int: ...

    @poison_token.setter
    def poison_token(self, arg: int, /) -> None: ...

    @property
    def tells_phases(self) -> bool: ...

    @tells_phases.setter
    def tells_phases(self, arg: bool, /) -> None: ...

    def step(self, phase: int, sequences: int, tokens: int, rows: int = 0) -> None: ...

class HostScheduler:
    def __init__(self, ring: Ring, engine: HostEngine, doorbell: int, notify: Sequence[int], trace_capacity: int = 0) -> None: ...

    def run_pass(self) -> int:
        """One pass on this thread; the Outcome."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def command(self, command: int) -> None: ...

    def close(self) -> None: ...

    def condition(self) -> int: ...

    def drain_trace(self) -> list[tuple[int, int, int, int]]:
        """Events since the last call; not while the thread runs."""

    def next_launch(self, timeout_ms: int) -> tuple[int, int, int, int, int] | None:
        """(graph, phase, sequences, tokens, rows), or None."""

    def complete(self, phase: int, error: int = 0) -> None: ...

class GrammarTooLarge(ValueError):
    pass

class GrammarTooSlow(ValueError):
    pass

class GrammarUnwritable(ValueError):
    pass

class TokenTrie:
    def __init__(self, bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    @property
    def vocabulary_size(self) -> int: ...

def grammar_hash(table: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int:
    """The hash that a table says it has; 0 of what is no table."""

def build_grammar(trie: TokenTrie, class_of: NDArray[numpy.uint8], next: NDArray[numpy.int32], accepting: NDArray[numpy.uint8], *, most_words: int, seconds: float) -> NDArray[numpy.int32]:
    """
    A table of grammar_table.h. Raises GrammarTooLarge, GrammarTooSlow, GrammarUnwritable.
    """

def cuda_calls() -> list[str]:
    """The driver's functions that HostDrivenScheduler needs, in its order."""

class HostDrivenScheduler:
    def __init__(self, ring: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], engine: HostEngine, *, driver: Sequence[int], context: int, stream: int, graphs: Sequence[int], device_buffers: Sequence[Sequence[int]], host_buffers: Sequence[Sequence[int]], polls: bool, doorbell: int, notify: Sequence[int], trace_capacity: int = 0) -> None:
        """
        A scheduler over a ring in host memory and an engine's graphs on a GPU. `driver` has the addresses of
        the functions that `cuda_calls` names; the buffers are a PhaseBuffers's addresses for each phase.
        """

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def command(self, command: int) -> None: ...

    def close(self) -> None: ...

    def condition(self) -> int: ...

    def drain_trace(self) -> list[tuple[int, int, int, int]]:
        """Events since the last call; not while the thread runs."""
