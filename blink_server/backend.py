"""The contract between the server and its backends.

Data path, in a worker process: `Backend.connect` gives a `Session`, `Session.submit` a
`TokenStream`, which yields `TokenEvent`s. Control path, in the provisioner: `Backend.check`,
`estimate`, `build` and `runner_command`; the runner's side of the control channel is described
in `blink_server.control`. The two paths share nothing but the `Endpoint`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from blink_server.errors import Problem


class FinishReason(StrEnum):
    """Why a request ended. `STOP` and `LENGTH` are OpenAI's; the rest never reach a client."""

    STOP = "stop"  # an end-of-sequence id or a stop token id was generated
    LENGTH = "length"  # max_tokens or the context length was reached
    CANCELLED = "cancelled"  # the caller cancelled the stream
    CLOSED = "closed"  # the endpoint was closing and never ran it: submit again elsewhere
    ERROR = "error"  # the engine failed; the stream raises EngineFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a token is chosen from the logits; every field acts inside the step.

    temperature: >= 0; 0 is greedy. top_p: (0, 1]. top_k: 0 is off. min_p: [0, 1).
    repetition_penalty: > 0, 1 is off (over prompt and generated tokens, as in CTRL, arXiv
    1909.05858); presence_penalty, frequency_penalty: [-2, 2], 0 is off (generated tokens only).
    seed: 64 bits; the random number of a token depends on (seed, position) alone.
    logprobs: None is off, 0 the chosen token's, n <= 20 also the n best.
    logit_bias: token id -> added to its logit.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class TokenBytes:
    """What every token of a vocabulary adds to a text.

    data: uint8 [bytes]; offsets: uint64 [vocabulary_size + 1]: token i is
    data[offsets[i] : offsets[i + 1]]. A token without bytes is never part
    of a constrained text. One object for all grammars of a tokenizer. digest: of its contents.
    """

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.uint64]
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class Grammar:
    """The texts that an answer may be: an automaton over their bytes, whose state 0 is the first.

    class_of: uint8 [256], bytes that are alike; next: int32 [states, classes], -1 where the byte is
    refused; accepting: uint8 [states], 1 where a text may end. Every state leads to one of those.
    digest: equal for equal automata over equal tokens. param: the request's field that asks for it.
    """

    class_of: npt.NDArray[np.uint8]
    next: npt.NDArray[np.int32]
    accepting: npt.NDArray[np.uint8]
    digest: str
    tokens: TokenBytes
    param: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One sequence to generate: the validated record that becomes one slot.

    `prompt_ids` is not empty and, with one generated token, fits the context. `stop_token_ids`
    end the request like an end-of-sequence id does; `ignore_eos` turns only the model's own
    end-of-sequence ids off. `priority` 0 is served first; larger numbers later. With a `grammar`
    the answer is the beginning of one of its texts, and a whole one where it ends with an
    end-of-sequence id; that is held inside the step, and `min_tokens` and `ignore_eos` give way. A
    backend that cannot hold it refuses the request.
    """

    prompt_ids: Sequence[int]
    max_tokens: int
    min_tokens: int = 0
    sampling: SamplingParams = SamplingParams()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    priority: int = 0
    grammar: Grammar | None = None
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of a generated token after penalties and bias, before temperature.

    `top` holds (token id, log-probability) of the best tokens, best first; its length is
    `SamplingParams.logprobs`.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """The scheduler's time stamps of one request: nanoseconds of CLOCK_MONOTONIC, 0 = never."""

    claimed_ns: int
    prefill_ns: int  # its first prefill was launched
    first_token_ns: int
    finished_ns: int


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """A request's tokens so far, as a backend counts them whose ids stand for something else."""

    prompt_tokens: int
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What became visible of a request since the last event.

    The last event of a stream, and only it, has a `reason` and `timing`; it may carry tokens too.
    The token that ended a request (end-of-sequence or stop token id) is the last of `token_ids`.
    `logprobs` has one entry a token where they were asked for. `usage` is given where the ids are
    not the tokens that the client is to be told the number of.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob] | None = None
    reason: FinishReason | None = None
    timing: RequestTiming | None = None
    usage: TokenUsage | None = None


class TokenStream(Protocol):
    """The events of one request, for one consumer on the event loop that submitted it.

    Iteration ends after the event with a reason. It raises `EngineFailure` when the engine
    fails, and its kind `RunnerLost` when the runner is gone; no event is repeated or lost before
    that. `cancel` returns at once, may be called at any time and any number of times, and makes the
    stream end soon (with CANCELLED or with the reason that came first); a consumer that goes away
    without reading on must call it.
    """

    def __aiter__(self) -> AsyncIterator[TokenEvent]: ...

    def cancel(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one request may ask of a version; checked before tokens become a slot."""

    context_length: int  # prompt + generated tokens
    vocabulary_size: int
    eos_token_ids: tuple[int, ...]
    max_logprobs: int = 20


@dataclass(frozen=True, slots=True)
class GraphLaunches:
    """How often one graph of the grid was launched, modulo 2^32.

    `phase`: "decode", "prefill", or "mixed", a prefill beside a decode step of `rows`.
    """

    phase: str
    sequences: int  # decode: rows
    tokens: int  # decode: rows
    launches: int
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """What a version's scheduler says of itself now; counters count from its start.

    A gap is the time from the end of a step, as the scheduler notices it, to the launch of the
    step that follows it at once. What begins with `agent` is of the agent through which this
    session reaches the ring, 0 where it needs none.
    """

    rows: int  # requests that one decode step can serve
    rows_used: int
    waiting: int  # claimed requests without a row
    kv_usage: float  # share of the KV memory in use, 0 to 1
    kv_blocks: int = 0  # that requests can have
    kv_block_tokens: int = 0
    steps: int
    decode_launches: int
    prefill_launches: int
    mixed_launches: int = 0
    tail_launches: int
    launch_retries: int
    preemptions: int
    parks: int = 0
    completions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    gaps: int = 0
    gap_seconds: float = 0.0
    agent_turns: int = 0
    agent_reads: int = 0
    agent_read_bytes: int = 0
    agent_writes: int = 0
    agent_written_bytes: int = 0
    agent_reconnections: int = 0
    graphs: tuple[GraphLaunches, ...] = ()


SLOT_STATES = (
    "EMPTY",
    "PREFILL_PENDING",
    "PREFILL_PROCESSING",
    "DECODE_PROCESSING",
    "DECODE_PAUSED",
    "DECODE_COMPLETED",
)
"""The states of a slot of a ring; a `SlotTable` has their numbers."""


@dataclass(frozen=True, slots=True)
class SlotTable:
    """The slots of a version's ring as of now, for whoever watches; it says nothing of texts.

    states: uint8 [slots], places in `SLOT_STATES`. tickets, generated: uint32 [slots].
    ages: float64 [slots], seconds since the slot's request was claimed; 0 where it has none.
    slots_per_range: so many slots in a row belong to one frontend.
    """

    states: npt.NDArray[np.uint8]
    tickets: npt.NDArray[np.uint32]
    generated: npt.NDArray[np.uint32]
    ages: npt.NDArray[np.float64]
    slots_per_range: int


class Session(Protocol):
    """A worker's connection to one loaded version. All calls on the worker's event loop."""

    limits: SessionLimits

    async def submit(self, request: GenerateRequest) -> TokenStream:
        """Hand a request over; returns when it is in its slot.

        Raises `Overloaded` when no slot or arena space is free, `Unavailable` when the endpoint
        is closed (retry on the version's next endpoint), `InvalidRequest` when a limit is passed,
        also by the tables that its grammar needs.
        """
        ...

    @property
    def in_flight(self) -> int:
        """Requests submitted whose slot has not been given back."""
        ...

    def configure(self, config: Mapping[str, Any]) -> None:
        """Apply what of the version's config.json may change in service: `limits.max_queue`.

        Called after `connect` and whenever the file has changed; takes effect with the next
        submit.
        """
        ...

    def stats(self) -> SchedulerStats | None:
        """For metrics; None where the backend has no scheduler of its own."""
        ...

    def slots(self) -> SlotTable | None:
        """For metrics and the console; None where the backend has no ring."""
        ...

    def on_closed(self, callback: Callable[[str], None]) -> None:
        """Call `callback(reason)` once when the other side is gone."""
        ...

    async def close(self) -> None:
        """Cancel what is in flight, give slots back, release all resources."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a READY version can be reached: a transport's name and what that transport needs.

    `address` is plain JSON, passed through the catalog unread: for `shm`, {"socket": path}.
    """

    transport: str
    address: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One complete version directory whose config.json has passed its schema.

    `config` is the parsed config.json with the schema's defaults filled in.
    """

    model: str
    version: int
    directory: Path
    config: Mapping[str, Any]

    @property
    def key(self) -> str:
        return f"{self.model}:{self.version}"


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What `Backend.build` wrote: file names relative to the directory, and config.json fragments.

    `notes` are lines for the user who imports: how weights are held, and what that costs.
    """

    files: Sequence[str]
    config: Mapping[str, Any]  # merged into config.json by the importer ("engine", "limits", ...)
    graph_grid: Mapping[str, Any]  # graph_grid.json
    notes: Sequence[str] = ()


@runtime_checkable
class Backend(Protocol):
    """A way to load versions and serve them; found by `config.json`'s "backend" field.

    All methods but `connect` run in the provisioner (or the command line tool) and must not
    import or map a model's weights, except `build`.
    """

    name: str

    def check(self, version: ModelVersion) -> Sequence[Problem]:
        """Problems beyond the schema: missing or unreadable files, impossible limits."""
        ...

    def estimate(self, version: ModelVersion) -> int:
        """Bytes of memory the loaded version will need, from its files and limits alone."""
        ...

    def build(
        self,
        checkpoint: Any,
        directory: Path,
        *,
        limits: Mapping[str, int],
        options: Mapping[str, Any],
        progress: Callable[[str, float], None],
    ) -> BuildResult:
        """Write the engine files for a checkpoint (`blink_server.importers.Checkpoint`).

        `limits` holds what the user asked for ("max_rows", "context_length"), a subset of
        config.json's limits; the backend chooses the others and returns them all in
        `BuildResult.config["limits"]`. `options` holds what they asked of the engine ("compute",
        and "name" of an `EngineBackend`): the backend refuses what it does not know, and records
        what it took in `BuildResult.config["engine"]`. `directory` is private to the call until
        it returns; `progress(stage, fraction)` may be called from any thread. Raises
        `InvalidModel` for a checkpoint, limits or options it cannot serve.
        """
        ...

    def runner_command(self, version: ModelVersion, *, threads: int) -> Sequence[str]:
        """The argv of the process that will hold the loaded version.

        The provisioner starts it with the environment of `blink_server.control` and watches it.
        `threads` is its share of the machine's CPU threads. An empty one says that the workers
        serve the version themselves, each from its `connect` on: see `blink_server.worker_backend`.
        """
        ...

    async def connect(self, version: ModelVersion, endpoint: Endpoint) -> Session:
        """Attach a worker to a READY version. Raises `Unavailable`."""
        ...


@runtime_checkable
class EngineBackend(Backend, Protocol):
    """A backend that builds for one of several engines: `import --engine` names it."""

    engines: Mapping[str, Any]

    def import_options(self, engine: str | None) -> Collection[str]:
        """Which of "quantize" and "compute" an import for an engine takes; None: the default one.

        An engine that does not take "quantize" is given float matrices as they are.
        """
        ...


@runtime_checkable
class SourceBackend(Backend, Protocol):
    """A backend that gives the weights of its versions, so that others are built of them."""

    def checkpoint(self, version: ModelVersion) -> Any:
        """A version as a `blink_server.importers.checkpoint.Checkpoint`, which `build` takes.

        Raises `InvalidModel` where its engine does not keep weights as they came.
        """
        ...
