"""The contract of an engine: what turns token ids into the next token inside `blink_persistent`.

An engine is provisioned once, before traffic. Afterwards the scheduler fills the step buffers,
launches one graph at a time and reads the outputs; it knows nothing else about a model. Engines
that run on the host execute a launched graph in `Provisioned.step`, on the runner's engine thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from blink_persistent import _native
from blink_persistent.graph_grid import GraphGrid
from blink_persistent.graph_lookup import decode_lookup, mixed_lookup, prefill_lookup
from blink_server.backend import BuildResult, ModelVersion
from blink_server.errors import Problem

if TYPE_CHECKING:
    from blink_persistent.engines.place import GpuPlace
    from blink_persistent.gpu.driver import Gpu
    from blink_persistent.gpu.structs import EngineTables

TOKEN_GRANULARITY = 16
"""Tokens that one column of the prefill lookup table stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """The numbers of a provisioned engine; `EngineTables` in provisioned.h says what each means.

    Without `rows_movable` a row is its own KV memory: block_size is the context length. A
    `prefill_chunk` of 0 is as long as the largest prefill step.
    """

    grid: GraphGrid
    context_length: int
    vocabulary_size: int
    eos_token_ids: tuple[int, ...]
    block_size: int
    block_count: int
    rows_movable: bool
    deterministic: bool = False
    prefill_chunk: int = 0

    def host_engine(self) -> _native.HostEngine:
        """Step buffers in host memory and the lookup tables. Raises ValueError."""
        grid = self.grid
        return _native.make_engine(
            graphs=[(key.phase, key.sequences, key.tokens, key.rows) for key in grid.keys],
            decode_lookup=decode_lookup(grid).tolist(),
            prefill_lookup=prefill_lookup(grid, TOKEN_GRANULARITY).ravel().tolist(),
            mixed_lookup=mixed_lookup(grid, TOKEN_GRANULARITY).ravel().tolist(),
            eos_token_ids=list(self.eos_token_ids),
            max_rows=grid.max_rows,
            max_sequences=grid.max_sequences,
            max_prefill_tokens=grid.max_prefill_tokens,
            token_granularity=TOKEN_GRANULARITY,
            prefill_chunk=self.prefill_chunk,
            mixed_sequences=grid.mixed_sequences,
            max_mixed_tokens=grid.max_mixed_tokens,
            context_length=self.context_length,
            vocabulary_size=self.vocabulary_size,
            block_size=self.block_size,
            block_count=self.block_count,
            max_blocks=-(-self.context_length // self.block_size),
            rows_movable=self.rows_movable,
            deterministic=self.deterministic,
        )


@dataclass(frozen=True, slots=True)
class Launch:
    """One launched graph: its number and key.

    A mixed one works on the step buffers of both other phases, and samples in both.
    """

    graph: int
    phase: int
    sequences: int
    tokens: int
    rows: int = 0


class HostSampling(Protocol):
    """A sampler bound to an engine's step buffers; called on the engine thread."""

    def sample(self, phase: int, count: int, logits: Any) -> None:
        """Choose tokens for the active ones of the first `count` rows of a phase.

        logits: float32 [>= count, vocabulary_size], C-contiguous. Writes output_tokens (-1 where
        logits are not finite) and, where asked for, the log-probabilities.
        """
        ...


class DeviceSampling(Protocol):
    """A sampler bound to an engine's step buffers on a GPU: the last kernel of each graph."""

    def record(self, phase: int, count: int, stream: Any, *, first: int = 0) -> None:
        """Enqueue it for the first `count` rows of a phase; it counts the step as completed.

        Their logits begin at row `first`. A mixed graph ends with two: one for its prompts, one
        for its rows.
        """
        ...


class Sampler(Protocol):
    """What the hook `blink_samplers` gives, by name."""

    def host(self, engine: _native.HostEngine) -> HostSampling:
        """The sampler on a host, for one provisioned engine."""
        ...

    def device(self, gpu: Any, tables: Any, logits: int) -> DeviceSampling:
        """The sampler on a `Gpu`, for an engine's `EngineTables` and the logits' address.

        `logits`: float32 [most rows and sequences, vocabulary_size]; a step may change them.
        """
        ...


@dataclass(frozen=True, slots=True)
class ProvisionLimits:
    """What a runner grants an engine: CPU threads, and the sampler that its steps end with.

    On a GPU that serves other versions, an engine enters `exclusive()` around every call that
    would wait for their resident schedulers (it loads a module, frees memory, destroys an
    executable graph), in `provision` and `close` alike. All of them stand still inside, so it is
    entered for milliseconds, never nested, and by one thread at a time.
    """

    threads: int
    sampler: Sampler
    exclusive: Callable[[], AbstractContextManager[None]] = nullcontext


class Provisioned(Protocol):
    """An engine with everything built: it only steps from here on."""

    shape: EngineShape
    host: _native.HostEngine

    def step(self, launch: Launch) -> None:
        """Run one launched graph to its end. Engine thread only; raises EngineFailure."""
        ...

    def close(self) -> None:
        """Give all memory back; no step may follow."""
        ...


class DeviceProvisioned(Protocol):
    """A version on a GPU with everything built: what a scheduler needs of it.

    `graphs` are executable, uploaded for device launch, one a key of the shape's grid; 0 for one
    that the lookup tables do not name yet. All calls come from the thread that provisioned it.
    """

    shape: EngineShape
    gpu: Gpu
    tables: EngineTables

    @property
    def graphs(self) -> Sequence[Any]: ...

    def complete(self, publish: Callable[[int, Any], None]) -> Future[None]:
        """Build what is missing of `graphs`, beside a running scheduler; returns at once.

        `publish(graph, executable)` (`DeviceScheduler.publish`) is called from another thread,
        before the lookup tables name the graph. Who copies the tables waits for the end first.
        """
        ...

    def close(self) -> None:
        """Give all memory back; no scheduler may be running on it."""
        ...


class Engine(Protocol):
    """What the hook `blink_engines` gives, by name. Importing it must be cheap.

    An engine may have `import_options`, what an import for it takes of "quantize" and "compute":
    without "quantize" it is given float matrices as they are. Both, if it does not say.
    An engine that keeps a model's weights as they came may have `checkpoint(version)`, which gives
    them as a `Checkpoint` for a build of another version, or raises InvalidModel.
    """

    def check(self, version: ModelVersion) -> Sequence[Problem]:
        """Problems of the version's files and options beyond the schema."""
        ...

    def place(self, version: ModelVersion) -> GpuPlace | None:
        """The GPU that the version runs on, None where it is the host's CPU; options are checked.

        On a GPU `provision` gives a `DeviceProvisioned`, and runs in a process in which the GPU is
        number 0.
        """
        ...

    def estimate(self, version: ModelVersion) -> int:
        """Bytes of memory the provisioned version will need, from files and limits alone."""
        ...

    def build(
        self,
        checkpoint: Any,
        directory: Path,
        *,
        limits: Mapping[str, Any],
        options: Mapping[str, Any],
        progress: Callable[[str, float], None],
    ) -> BuildResult:
        """Write engine files for a checkpoint, as `Backend.build` says."""
        ...

    def provision(
        self,
        version: ModelVersion,
        grid: GraphGrid,
        limits: ProvisionLimits,
        *,
        progress: Callable[[str, float], None],
    ) -> Provisioned | DeviceProvisioned:
        """Load the version. Raises InvalidModel or EngineFailure."""
        ...
