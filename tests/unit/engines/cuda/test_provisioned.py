"""What the engine does to be provisioned and captured; the driver and PyTorch's GPU are stand-ins.

Steps run in plain PyTorch on the CPU, at once, also where they are captured.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from blink_persistent.engines import ProvisionLimits
from blink_persistent.engines.cuda import provisioned, step_tensors
from blink_persistent.engines.cuda.engine import CudaEngine
from blink_persistent.engines.cuda.kernels.cuts.choices import StepChoices
from blink_persistent.engines.cuda.kernels.fused import FusedKernels
from blink_persistent.engines.cuda.kernels.reference import ReferenceKernels
from blink_persistent.engines.cuda.weight_file import write_weights
from blink_persistent.gpu import driver as gpu_driver
from blink_persistent.graph_grid import DECODE, PREFILL, GraphGrid, default_grid
from blink_persistent.graph_lookup import coarse_part
from blink_persistent.testing.cuda_harness import cuda_version
from blink_persistent.testing.fake_driver import FREE_BYTES, TOTAL_BYTES, FakeDriver
from blink_server.testing.memory_checkpoint import random_checkpoint, tiny_architecture

MODEL = tiny_architecture(vocabulary_size=100, context_length=128)
GRID = default_grid(4, 64, max_sequences=2, max_mixed_tokens=16)
CPU = torch.device("cpu")


class Stream:
    """Whatever is enqueued is done at once."""

    device, cuda_stream = CPU, 0

    def synchronize(self) -> None: ...


class Sampler:
    """Fulfils `Sampler` and `DeviceSampling`: a kernel that does nothing."""

    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver

    def device(self, gpu: Any, tables: Any, logits: int) -> Any:
        assert logits
        return self

    def record(self, phase: int, count: int, stream: Any, *, first: int = 0) -> None:
        self._driver.enqueue([f"sample{phase}:{first}+{count}"])


def torch_graph(driver: FakeDriver) -> type:
    """A stand-in for `torch.cuda.CUDAGraph` that captures what is enqueued with the driver."""

    class Graph:
        def __init__(self, keep_graph: bool) -> None:
            assert keep_graph

        def capture_begin(self, **_: Any) -> None:
            driver.tell("begin")
            driver.cuStreamBeginCapture(0, 0)

        def capture_end(self) -> None:
            self._graph = driver.cuStreamEndCapture(0)[1]

        def raw_cuda_graph(self) -> int:
            return int(self._graph)

    return Graph


class Stepping(ReferenceKernels, FusedKernels):
    """All that `FusedKernels` hold, while steps are run in plain PyTorch."""


def hold_fused(engine: provisioned.CudaProvisioned, options: Any, choices: Any) -> Stepping:
    return Stepping(
        options.architecture,
        max_rows=engine.grid.max_rows,
        capacity=engine.limits.max_blocks * options.block_size,
        processors=131,
        chained=True,
        device=CPU,
    )


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """One GPU, which PyTorch sees too, and whose memory is the host's."""
    made = FakeDriver()
    monkeypatch.setattr(gpu_driver, "cuda_driver", lambda: made)
    for name, stand_in in (
        ("init", lambda: None),
        ("mem_get_info", lambda device: (FREE_BYTES, TOTAL_BYTES)),
        ("Stream", Stream),
        ("current_stream", Stream),
        ("stream", lambda stream: nullcontext()),
        ("graph_pool_handle", lambda: (0, 1)),
        ("CUDAGraph", torch_graph(made)),
        ("empty_cache", lambda: made.tell("empty cache")),
    ):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    clear = "_cuda_clearCublasWorkspaces"
    monkeypatch.setattr(torch._C, clear, lambda: made.tell("clear"), raising=False)
    monkeypatch.setattr(provisioned, "torch", OnCpu())
    monkeypatch.setattr(step_tensors, "device_words", words)
    monkeypatch.setattr(provisioned, "device_words", words)
    monkeypatch.setattr(provisioned, "load_products", lambda device: None)
    monkeypatch.setattr(provisioned, "leave_multiprocessors", lambda count: None)
    monkeypatch.setattr(provisioned.CudaProvisioned, "_choices", lambda *_: StepChoices())
    monkeypatch.setattr(provisioned.CudaProvisioned, "_kernels", hold_fused)
    return made


class OnCpu:
    """PyTorch whose devices all are the CPU."""

    def device(self, *_: Any) -> Any:
        return CPU

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def words(address: int, *shape: int, device: Any) -> Any:
    assert address
    return torch.zeros(shape, dtype=torch.int32)


@pytest.fixture
def make(driver: FakeDriver, tmp_path: Path) -> Any:
    write_weights(random_checkpoint(MODEL, seed=3), tmp_path / "model.safetensors")

    def provision(grid: GraphGrid = GRID, **engine: Any) -> provisioned.CudaProvisioned:
        version = cuda_version(
            tmp_path,
            engine={"block_size": 16, "block_count": 20, **engine},
            context_length=64,
            prefill_chunk=16,
        )
        limits = ProvisionLimits(1, Sampler(driver), driver.exclusive)  # type: ignore[arg-type]
        told = list[str]()
        found = CudaEngine().provision(
            version, grid, limits, progress=lambda stage, part: told.append(stage)
        )
        assert list(dict.fromkeys(told)) == ["weights", "kernels", "graphs"]
        return found

    return provision


def samplers(engine: provisioned.CudaProvisioned) -> set[str]:
    """The last kernels of each key's step."""
    found = set()
    for key in engine.grid.keys:
        if len(key.parts) == 1:
            found.add(f"sample{key.phase}:0+{key.sequences}")
        else:
            found.add(
                f"sample{PREFILL}:0+{key.sequences} sample{DECODE}:{key.sequences}+{key.rows}"
            )
    return found


def instantiated(driver: FakeDriver) -> list[str]:
    return [call[len("[instantiate ") : -1] for call in driver.calls if "instantiate" in call]


def test_every_key_is_captured_with_its_samplers(make: Any, driver: FakeDriver) -> None:
    engine = make()
    assert set(instantiated(driver)) == samplers(engine)
    assert len(instantiated(driver)) == len(GRID.keys)
    assert all(engine.graphs)
    assert (engine.shape.block_count, engine.shape.prefill_chunk) == (20, 16)
    assert engine.tables.max_mixed_tokens == 16
    ready = len(driver.calls)
    assert "empty cache" in driver.calls, "what only the warm-up needed is kept"
    engine.close()
    assert driver.calls[ready:].count("clear") == 1
    assert driver.calls[-1] == "empty cache"


def test_the_first_capture_is_made_while_others_stand_still(make: Any, driver: FakeDriver) -> None:
    """What it loads would wait for them; later ones load nothing."""
    engine = make()
    begun = [call for call in driver.calls if "begin" in call]
    assert begun == ["[begin]", *len(GRID.keys) * ["begin"]]
    engine.close()


def test_the_rest_is_captured_in_the_background(make: Any, driver: FakeDriver) -> None:
    engine = make(capture="background")
    coarse = coarse_part(GRID)
    assert [i for i, graph in enumerate(engine.graphs) if int(graph)] == coarse
    published = dict[int, Any]()
    engine.complete(published.__setitem__).result()
    assert sorted([*coarse, *published]) == list(range(len(GRID.keys)))
    assert all(engine.graphs[graph] == made for graph, made in published.items())
    engine.close()


def test_a_failed_step_names_its_key_and_leaves_nothing(
    make: Any, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(Sampler, "record", fail)
    with pytest.raises(gpu_driver.CudaError, match=r"the prefill step of 2 sequences, 64 tokens"):
        make()
    assert driver.calls[-1] == "empty cache"
    assert any("cuMemFree" in call for call in driver.calls)


@pytest.mark.parametrize("capture", ["all", "background"])
def test_no_tensor_waits_for_the_garbage_collector(make: Any, capture: str) -> None:
    make(capture=capture).close()  # what stays from the first use of a library
    with without_collector():
        before = tensors()
        engine = make(capture=capture)
        engine.complete(lambda graph, executable: None).result()
        scratch = id(engine.decoder.kernels._partial)
        made = tensors() - before
        assert scratch in made
        assert len(made) > 30
        engine.close()
        assert not tensors() - before


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def tensors() -> set[int]:
    return {id(each) for each in gc.get_objects() if type(each) is torch.Tensor}
