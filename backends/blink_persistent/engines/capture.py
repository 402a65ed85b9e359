"""Captures one graph a key of the grid, each ready for launch by the scheduler on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from blink_persistent.gpu.driver import CudaError, Gpu
from blink_persistent.gpu.graphs import GraphRefused, instantiate
from blink_persistent.graph_grid import PHASES, GraphGrid, GraphKey

NOT_CAPTURED = 0
"""Stands for the executable of a graph that no table names yet."""

BATCH = 16
"""Graphs that `capture_missing` captures before it makes them available."""

Progress = Callable[[float], None]


class Recorder(Protocol):
    """Where steps run before they are captured, and are captured then."""

    def run(self, step: Callable[[], None]) -> None:
        """Run a step; its end is not waited for."""
        ...

    def finish(self) -> None:
        """Wait for the steps that run."""
        ...

    def record(self, step: Callable[[], None]) -> tuple[Any, int]:
        """Capture a step: what owns the graph, and the graph."""
        ...

    def explain(self, graph: int, refused: GraphRefused) -> str:
        """More about what was refused than the error says, or ""."""
        ...


class GraphCapture:
    """The captured graphs of a grid, by number.

    `executables` are owned by the `Gpu`, NOT_CAPTURED where there is none yet. `sources` are what
    the recorder gave with each graph, which may own its memory. `nbytes` is the device memory that
    the executables took.
    """

    def __init__(
        self, gpu: Gpu, grid: GraphGrid, step: Callable[[GraphKey], None], recorder: Recorder
    ) -> None:
        self._gpu, self._grid, self._step, self._recorder = gpu, grid, step, recorder
        self.executables: list[Any] = [NOT_CAPTURED] * len(grid.keys)
        self.sources: list[Any] = [None] * len(grid.keys)
        self.nbytes = 0

    def warm_up(self, step: Callable[[GraphKey], None], progress: Progress) -> None:
        """Run every key by `step`, which launches each kernel of the real one at least once.

        That compiles what is not compiled yet, loads it, and lets libraries allocate; after it, a
        step must neither allocate nor wait. Raises CudaError naming the key.
        """
        for done, key in enumerate(_largest_first(self._grid.keys), 1):
            with _naming(key):
                self._recorder.run(lambda key=key: step(key))  # type: ignore[misc]
            progress(done / len(self._grid.keys))
        self._recorder.finish()

    def capture(self, graphs: Sequence[int], progress: Progress) -> None:
        """Capture, instantiate and upload these graphs; does not wait for a resident scheduler.

        Raises CudaError naming the key.
        """
        # Largest first: later ones find all memory that they need in the pool.
        keys = _largest_first([self._grid.keys[graph] for graph in graphs])
        numbers = {self._grid.keys[graph]: graph for graph in graphs}
        for done, key in enumerate(keys, 1):
            with _naming(key):
                self._capture(numbers[key], key)
            progress(done / len(keys))

    def capture_missing(
        self,
        publish: Callable[[int, Any], None],
        make_available: Callable[[list[int]], None],
        stopped: Callable[[], bool],
    ) -> None:
        """Capture what is missing while a scheduler runs, until `stopped` says so.

        The scheduler is told of a batch's executables by `publish(graph, executable)`, then the
        tables name all that are `captured`. Raises CudaError naming the key.
        """
        missing = self.missing()
        for at in range(0, len(missing), BATCH):
            if stopped():
                return
            batch = missing[at : at + BATCH]
            self.capture(batch, lambda part: None)
            for graph in batch:
                publish(graph, self.executables[graph])
            make_available(self.captured())

    def captured(self) -> list[int]:
        """Numbers of the graphs that can be launched, in ascending order."""
        return [i for i, source in enumerate(self.sources) if source is not None]

    def missing(self) -> list[int]:
        """Numbers of those that cannot yet, in ascending order."""
        return [i for i, source in enumerate(self.sources) if source is None]

    def _capture(self, graph: int, key: GraphKey) -> None:
        source, raw = self._recorder.record(lambda: self._step(key))
        free = self._gpu.free_bytes()
        try:
            self.executables[graph] = instantiate(self._gpu, self._gpu.driver.CUgraph(raw))
        except GraphRefused as error:
            raise CudaError(f"{error}{self._recorder.explain(raw, error)}") from error
        self.nbytes += free - self._gpu.free_bytes()
        self.sources[graph] = source


def _largest_first(keys: Sequence[GraphKey]) -> list[GraphKey]:
    return sorted(keys, key=lambda key: (key.all_tokens, key.sequences), reverse=True)


@contextmanager
def _naming(key: GraphKey) -> Iterator[None]:
    try:
        yield
    except (CudaError, RuntimeError) as error:
        rows = f", {key.rows} rows" if key.rows else ""
        what = f"{PHASES[key.phase]} step of {key.sequences} sequences, {key.tokens} tokens{rows}"
        raise CudaError(f"the {what} cannot be captured: {error}") from error
