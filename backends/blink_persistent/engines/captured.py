"""What engines for a GPU have in common that capture one graph a key of the grid."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from blink_persistent.engines import TOKEN_GRANULARITY, EngineShape, ProvisionLimits
from blink_persistent.engines.capture import GraphCapture, Recorder
from blink_persistent.gpu.driver import Gpu
from blink_persistent.gpu.engine_buffers import EngineLimits, allocate_engine, make_available
from blink_persistent.gpu.structs import EngineTables
from blink_persistent.graph_grid import GraphGrid, GraphKey
from blink_persistent.graph_lookup import coarse_part
from blink_persistent.thread_names import helper_name
from blink_server.backend import ModelVersion

log = logging.getLogger(__name__)


class CapturedEngine:
    """Most of a `DeviceProvisioned`: tables, shape, graphs and how the missing ones come.

    Who derives from it calls `allocate`, and `capture_first` on the thread of `on_capture_thread`.
    Graphs are captured on a thread of its own, since libraries keep what they need by thread.
    """

    shape: EngineShape
    tables: EngineTables
    limits: EngineLimits
    captured: GraphCapture

    def __init__(self, grid: GraphGrid, limits: ProvisionLimits, *, in_background: bool) -> None:
        """`in_background`: begin with a coarse part of the grid; `complete` adds the rest."""
        self.grid = grid
        self.gpu = Gpu(exclusive=limits.exclusive)
        self.first_graphs = coarse_part(grid) if in_background else range(len(grid.keys))
        self._closing = threading.Event()
        self._capturing = ThreadPoolExecutor(
            1, helper_name("capture"), initializer=self.gpu.make_current
        )

    @property
    def graphs(self) -> list[Any]:
        """Executable graphs in the order of the grid's keys; 0 for one that is yet to come."""
        return self.captured.executables

    @property
    def graph_bytes(self) -> int:
        """Device memory of the executable graphs."""
        return self.captured.nbytes

    def complete(self, publish: Callable[[int, Any], None]) -> Future[None]:
        """Capture the graphs that are still missing, beside a running scheduler; returns at once.

        `publish` is called from another thread with each graph's number and executable; the
        lookup tables name it afterwards. Without a background there are none.
        """
        return self._capturing.submit(self._capture_rest, publish)

    def allocate(
        self, version: ModelVersion, *, vocabulary_size: int, block_size: int, block_count: int
    ) -> None:
        """Set `limits`, `shape` and `tables`, with the step buffers in device memory."""
        context: int = version.config["limits"]["context_length"]
        self.limits = EngineLimits(
            context_length=context,
            vocabulary_size=vocabulary_size,
            block_size=block_size,
            block_count=block_count,
            eos_token_ids=tuple(version.config["eos_token_ids"]),
            token_granularity=TOKEN_GRANULARITY,
            deterministic=version.config.get("deterministic", False),
            prefill_chunk=version.config["limits"].get("prefill_chunk", 0),
        )
        self.shape = EngineShape(
            grid=self.grid,
            context_length=context,
            vocabulary_size=vocabulary_size,
            eos_token_ids=self.limits.eos_token_ids,
            block_size=block_size,
            block_count=block_count,
            rows_movable=True,
            deterministic=self.limits.deterministic,
            prefill_chunk=self.limits.prefill_chunk,
        )
        self.tables = allocate_engine(self.gpu, self.grid, self.limits, self.first_graphs)

    def on_capture_thread(self, work: Callable[[], None]) -> None:
        """Run it on the thread that captures, and wait for its end; raises what it raises."""
        self._capturing.submit(work).result()

    def capture_first(
        self,
        recorder: Recorder,
        step: Callable[[GraphKey], None],
        warm_up: Callable[[GraphKey], None],
        progress: Callable[[str, float], None],
        *,
        loading: AbstractContextManager[None] | None = None,
    ) -> None:
        """Set `captured`: every key is run by `warm_up`, inside `loading`, and those that the
        version begins with are captured by `step`. Raises CudaError naming the key."""
        began = time.monotonic()
        self.captured = GraphCapture(self.gpu, self.grid, step, recorder)
        with loading or nullcontext():
            self.captured.warm_up(warm_up, lambda part: progress("kernels", part))
        warm = time.monotonic()
        self.captured.capture(self.first_graphs, lambda part: progress("graphs", part))
        log.info(
            "%d graphs: kernels loaded in %.1f s, captured in %.1f s, %.1f MB of device memory",
            len(self.first_graphs),
            warm - began,
            time.monotonic() - warm,
            self.graph_bytes / 1e6,
        )

    def stop_capturing(self) -> None:
        """No graph is captured once this returns."""
        self._closing.set()
        self._capturing.shutdown(cancel_futures=True)

    def completion_words(self) -> Iterable[int]:
        """Addresses of the words that count each phase's ended steps."""
        return [buffers.completion for buffers in self.tables.buffers]

    def _capture_rest(self, publish: Callable[[int, Any], None]) -> None:
        began, missing = time.monotonic(), len(self.captured.missing())
        name_in_tables = partial(make_available, self.gpu, self.grid, self.tables)
        try:
            self.captured.capture_missing(publish, name_in_tables, self._closing.is_set)
        except BaseException:
            log.exception("%d graphs are missing for good", len(self.captured.missing()))
            raise
        if missing and not self._closing.is_set():
            seconds = time.monotonic() - began
            log.info("%d more graphs captured in %.1f s, in service", missing, seconds)
