"""From a plan on disk to a TensorRT engine: does it fit this machine, and is it what was built?"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from blink_persistent.engines.tensorrt.flavour import message_log
from blink_persistent.engines.tensorrt.network import pool_names
from blink_persistent.engines.tensorrt.options import PLUGIN, TensorRtOptions
from blink_persistent.engines.tensorrt.plugin_attention import plugin_creator
from blink_persistent.engines.tensorrt.trt_types import Engine, Trt
from blink_server.errors import Unavailable

STEP_INPUTS = ("token_ids", "start_positions", "lengths", "cu_seqlens", "block_tables")
LOGITS = "logits"
_READ_AT_ONCE = 64 << 20  # bytes of the plan that are in host memory


def check_machine(options: TensorRtOptions, path: Path, trt: Any, architecture: str) -> None:
    """Raise Unavailable, naming the plan, where another TensorRT or GPU is needed.

    `architecture`: of the GPU, as "sm_90".
    """
    plan, title = options.plan, options.flavour.title
    if trt.__version__ != plan.version:
        raise Unavailable(
            f"{path}: was built by {title} {plan.version}, this is {trt.__version__}: "
            "build the version again"
        )
    if architecture != plan.target:
        raise Unavailable(
            f"{path}: was built for {plan.target}, this GPU is {architecture}: "
            f"build the version with --target {architecture}"
        )


class LoadedPlan:
    """A plan as TensorRT's engine. `close` gives it back; contexts made of it must be gone."""

    def __init__(
        self, options: TensorRtOptions, path: Path, trt: Trt, report: Callable[[float], None]
    ) -> None:
        """`report` hears how much of the file was read. Raises Unavailable with the reason."""
        self._trt, self._path, self._logger = trt, path, message_log(trt)
        if options.plan.attention == PLUGIN:
            plugin_creator(trt, options.plugin)
        self._title = options.flavour.title
        with self.explaining():
            self._runtime = self._start()
            self.engine: Engine = self._read(options.plan.file_bytes, report)
        self._check_tensors(options.plan.architecture.layers)

    @property
    def step_bytes(self) -> int:
        """Device memory that a step of any key needs, shared by all contexts."""
        return int(self.engine.device_memory_size_v2)

    def explaining(self) -> AbstractContextManager[None]:
        """See `MessageLog`."""
        explaining: AbstractContextManager[None] = self._logger.explaining()
        return explaining

    def explanation(self) -> str:
        """See `MessageLog`."""
        return str(self._logger.explanation())

    def layers(self) -> list[tuple[str, str]]:
        """The name of each layer and of its tactic, in the order in which they run."""
        inspector = self.engine.create_engine_inspector()
        kind = self._trt.LayerInformationFormat.JSON
        found = json.loads(inspector.get_engine_information(kind)).get("Layers", [])
        return [
            (layer.get("Name", ""), layer.get("TacticName", ""))
            if isinstance(layer, dict)
            else (layer, "")
            for layer in found
        ]

    def close(self) -> None:
        """Give device memory back; waits for resident kernels."""
        self.__dict__.pop("engine", None)
        self.__dict__.pop("_runtime", None)

    def _start(self) -> Any:
        try:
            return self._trt.Runtime(self._logger)
        except RuntimeError as error:
            raise Unavailable(f"{self._title} cannot start here: {error}") from error

    def _read(self, size: int, report: Callable[[float], None]) -> Engine:
        with self._path.open("rb") as file:
            reader = _reader_class(self._trt)(file, size, report)
            engine: Engine | None = self._runtime.deserialize_cuda_engine(reader)
        if reader.error is not None:
            raise reader.error
        if engine is None:
            why = self._logger.explanation()
            raise Unavailable(f"{self._path}: {self._title} cannot load the plan: {why}")
        return engine

    def _check_tensors(self, layers: int) -> None:
        pools = [name for layer in range(layers) for name in pool_names(layer)]
        wanted = {*STEP_INPUTS, LOGITS, *pools, *(f"{name}.out" for name in pools)}
        names = (self.engine.get_tensor_name(i) for i in range(self.engine.num_io_tensors))
        if different := sorted(wanted ^ set(names)):
            raise Unavailable(
                f"{self._path}: the plan's inputs and outputs are not those of its config.json "
                f"({different[0]!r} and {len(different) - 1} others): build the version again"
            )


class _PlanReader:
    """The methods of an `IStreamReaderV2`: a part of the file at a time."""

    trt: Any

    def __init__(self, file: BinaryIO, size: int, report: Callable[[float], None]) -> None:
        self.trt.IStreamReaderV2.__init__(self)
        self._file, self._size, self._report = file, size, report
        self.error: OSError | None = None

    def read(self, num_bytes: int, stream: int) -> bytes:
        try:
            data = self._file.read(min(num_bytes, _READ_AT_ONCE))
        except OSError as error:
            self.error = error
            return b""
        self._report(min(1.0, self._file.tell() / self._size))
        return data

    def seek(self, offset: int, where: Any) -> bool:
        """From the start, the current place or the end: as `SeekPosition`."""
        self._file.seek(offset, int(where))
        return True


@cache
def _reader_class(trt: Any) -> Any:
    return type("Reader", (_PlanReader, trt.IStreamReaderV2), {"trt": trt})
