"""TensorRT's runtime that is none, for how a plan is loaded and captured, over a `FakeDriver`.

It stands in for the calls that `engines/tensorrt` makes on a GPU, and for nothing else: no step
computes anything. What the real module can do without a GPU is tested with the real one.
"""

from __future__ import annotations

import json
from types import ModuleType, SimpleNamespace
from typing import Any

from blink_persistent.testing.fake_driver import FakeDriver

VERSION = "11.4.0.106"
STEP_BYTES = 1 << 20


class FakeContext:
    """Takes shapes and addresses as TensorRT does, and enqueues the engine's kernels."""

    def __init__(self, engine: FakeEngine, strategy: str) -> None:
        self.engine, self.strategy = engine, strategy
        self.profile = -1
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.memory = (0, 0)
        engine.driver.tell("context")
        engine.contexts.append(self)

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.profile = profile
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = shape
        return name in self.engine.names and not name.endswith(".out")

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return name in self.engine.names and address > 0

    def set_device_memory(self, memory: int, size: int) -> None:
        self.memory = (memory, size)

    def execute_async_v3(self, stream: int) -> bool:
        assert set(self.addresses) == set(self.engine.names)
        self.engine.driver.tell("enqueue")
        if self.engine.refuses_capture and self.engine.driver.is_recording:
            return False
        self.engine.driver.enqueue(self.engine.kernels)
        return True

    def __del__(self) -> None:
        self.engine.driver.tell("context gone")


class FakeEngine:
    """A plan that was read; `kernels` are those of one step, `layers` as the inspector tells."""

    device_memory_size_v2 = STEP_BYTES

    def __init__(
        self, driver: FakeDriver, names: list[str], kernels: list[str], layers: list[dict[str, str]]
    ) -> None:
        self.driver, self.names, self.kernels, self._layers = driver, names, kernels, layers
        self.contexts: list[FakeContext] = []
        self.refuses_capture = False
        self.num_io_tensors = len(names)

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def create_runtime_config(self) -> Any:
        config = SimpleNamespace(strategy="")
        config.set_execution_context_allocation_strategy = lambda strategy: setattr(
            config, "strategy", strategy
        )
        return config

    def create_execution_context(self, config: Any) -> FakeContext:
        return FakeContext(self, config.strategy)

    def create_engine_inspector(self) -> Any:

        told = json.dumps({"Layers": self._layers})
        return SimpleNamespace(get_engine_information=lambda kind: told)


class FakeLogger:
    """The base of a logger."""

    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)


class FakeReader:
    """The base of a stream reader."""


def fake_tensorrt(engine: FakeEngine | None, *, complaint: str = "") -> Any:
    """A module `tensorrt` whose runtime reads every plan to its end and gives `engine`.

    `complaint`: what its logger is told of a plan that gives None.
    """

    class Runtime:
        def __init__(self, logger: Any) -> None:
            self._logger = logger

        def deserialize_cuda_engine(self, reader: Any) -> FakeEngine | None:
            while reader.read(1 << 10, 0):
                pass
            if engine is None:
                self._logger.log(FakeLogger.ERROR, complaint)
            return engine

    module = ModuleType("tensorrt")
    vars(module).update(
        __version__=VERSION,
        ILogger=FakeLogger,
        IStreamReaderV2=FakeReader,
        Runtime=Runtime,
        LayerInformationFormat=SimpleNamespace(JSON="json"),
        ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED="user managed"),
    )
    return module
