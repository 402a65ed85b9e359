"""The engine `scripted` on a GPU, as a runner serves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from blink_persistent.engines import TOKEN_GRANULARITY, EngineShape
from blink_persistent.gpu.driver import Gpu
from blink_persistent.gpu.engine_buffers import EngineLimits
from blink_persistent.gpu.scripted import DeviceScriptedEngine

_NO_TOKEN = -1


class DeviceScriptedVersion:
    """Fulfils `DeviceProvisioned`."""

    def __init__(
        self,
        shape: EngineShape,
        *,
        eos_every: int,
        step_ns: int,
        exclusive: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`exclusive` is `ProvisionLimits`'. Raises Unavailable, CudaError, DeviceCodeError."""
        self.shape = shape
        self.gpu = Gpu(exclusive=exclusive)
        limits = EngineLimits(
            context_length=shape.context_length,
            vocabulary_size=shape.vocabulary_size,
            block_size=shape.block_size,
            block_count=shape.block_count,
            eos_token_ids=shape.eos_token_ids or (_NO_TOKEN,),
            rows_movable=shape.rows_movable,
            token_granularity=TOKEN_GRANULARITY,
            deterministic=shape.deterministic,
            prefill_chunk=shape.prefill_chunk,
        )
        try:
            engine = DeviceScriptedEngine(
                self.gpu, shape.grid, limits, eos_every=eos_every, step_ns=step_ns
            )
        except BaseException:
            self.gpu.close()
            raise
        self.tables = engine.tables
        self.graphs: Sequence[Any] = engine.graphs

    def complete(self, publish: Callable[[int, Any], None]) -> Future[None]:
        """Nothing is missing."""
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def close(self) -> None:
        """Free everything."""
        self.gpu.close()
