"""Which graphs are captured in which order, and what becomes of them, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from blink_persistent.engines import capture as capturing
from blink_persistent.engines.capture import BATCH, NOT_CAPTURED, GraphCapture
from blink_persistent.gpu.driver import CudaError
from blink_persistent.gpu.graphs import GraphRefused
from blink_persistent.graph_grid import DECODE, MIXED, PREFILL, GraphKey, fine_grid
from blink_persistent.graph_lookup import coarse_part

pytestmark = pytest.mark.usefixtures("fake_instantiation")

GRID = fine_grid(8, 256, max_sequences=2, granularity=16, max_mixed_tokens=128)
BYTES = 1000  # of an executable


class FakeGpu:
    """An executable is the graph's name in capitals."""

    driver = SimpleNamespace(CUgraph=lambda raw: raw)

    def __init__(self) -> None:
        self.made: list[str] = []
        self.taken = 0  # bytes, by others

    def instantiate(self, graph: str) -> str:
        self.made.append(graph)
        return graph.upper()

    def free_bytes(self) -> int:
        return 10**6 - BYTES * len(self.made) - self.taken


@pytest.fixture
def fake_instantiation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturing, "instantiate", lambda gpu, graph: gpu.instantiate(graph))


class FakeRecorder:
    """A graph is the name of the step that was captured."""

    def __init__(self) -> None:
        self.waits = 0

    def run(self, step: Callable[[], None]) -> None:
        step()

    def finish(self) -> None:
        self.waits += 1

    def record(self, step: Callable[[], Any]) -> tuple[Any, Any]:
        name = step()
        return {"owner": name}, name

    def explain(self, graph: Any, refused: GraphRefused) -> str:
        return f", which is {refused.node} of {graph}"


def name_of(key: GraphKey) -> str:
    return f"{'dpm'[key.phase]}{key.sequences}x{key.tokens}+{key.rows}"


def capture(gpu: FakeGpu, step: Callable[[GraphKey], Any] = name_of) -> GraphCapture:
    made: Any = gpu
    return GraphCapture(made, GRID, step, FakeRecorder())


def test_every_graph_is_captured_largest_first_and_kept_in_the_grids_order() -> None:
    gpu, told = FakeGpu(), list[float]()
    found = capture(gpu)
    assert found.missing() == list(range(len(GRID.keys)))
    assert set(found.executables) == {NOT_CAPTURED}
    found.capture(range(len(GRID.keys)), told.append)
    assert found.executables == [name_of(key).upper() for key in GRID.keys]
    assert [source["owner"] for source in found.sources] == [name_of(key) for key in GRID.keys]
    assert gpu.made[:2] == ["p2x256+0", "p1x256+0"]
    assert gpu.made.index("m2x128+8") < gpu.made.index("p2x128+0")
    assert gpu.made[-1] == "d1x1+0"
    assert (found.missing(), found.nbytes) == ([], BYTES * len(GRID.keys))
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_a_part_can_be_captured_first() -> None:
    found = capture(FakeGpu())
    coarse = coarse_part(GRID)[:3]
    found.capture(coarse, lambda part: None)
    assert (found.captured(), found.nbytes) == (coarse, 3 * BYTES)
    assert sorted(found.captured() + found.missing()) == list(range(len(GRID.keys)))
    found.capture(found.missing(), lambda part: None)
    assert found.executables == [name_of(key).upper() for key in GRID.keys]
    assert found.nbytes == BYTES * len(GRID.keys)


def test_what_a_step_takes_when_it_is_recorded_is_no_executables() -> None:
    gpu = FakeGpu()

    def step(key: GraphKey) -> str:
        gpu.taken = 40 * BYTES  # from the pool of all graphs
        return name_of(key)

    found = capture(gpu, step)
    found.capture(range(3), lambda part: None)
    assert found.nbytes == 3 * BYTES


def test_each_key_is_warmed_up_by_the_step_that_is_given() -> None:
    gpu, ran = FakeGpu(), list[GraphKey]()
    found = capture(gpu)
    found.warm_up(ran.append, lambda part: None)
    assert sorted(ran) == sorted(GRID.keys)
    assert ran[0] == GraphKey(PREFILL, 2, 256)
    assert gpu.made == []
    assert found.missing() == list(range(len(GRID.keys)))


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize(
    ("failing", "name"),
    [
        (GraphKey(DECODE, 4, 4), "decode step of 4 sequences, 4 tokens"),
        (GraphKey(MIXED, 2, 64, 8), "mixed step of 2 sequences, 64 tokens, 8 rows"),
    ],
)
def test_a_step_that_fails_is_named(warm: bool, failing: GraphKey, name: str) -> None:
    def step(key: GraphKey) -> str:
        if key == failing:
            raise RuntimeError("no kernel image")
        return name_of(key)

    found = capture(FakeGpu(), step)

    def begin() -> None:
        if warm:
            found.warm_up(step, lambda part: None)  # type: ignore[arg-type]
        else:
            found.capture(range(len(GRID.keys)), lambda part: None)

    with pytest.raises(CudaError, match=f"{name} .*: no kernel"):
        begin()
    assert GRID.keys.index(failing) in found.missing()


def test_a_refused_graph_is_explained_by_who_recorded_it() -> None:
    class Refusing(FakeGpu):
        def instantiate(self, graph: str) -> str:
            raise GraphRefused("not supported", "node 7")

    with pytest.raises(CudaError, match="captured: not supported, which is node 7 of p2x256"):
        capture(Refusing()).capture(range(len(GRID.keys)), lambda part: None)


def test_graphs_are_published_before_tables_name_them() -> None:
    found, published, named = capture(FakeGpu()), dict[int, str](), list[list[int]]()
    found.capture(coarse_part(GRID), lambda part: None)
    missing = found.missing()
    assert len(missing) > BATCH

    def name(available: list[int]) -> None:
        assert set(available) == set(coarse_part(GRID)) | set(published)
        named.append(available)

    found.capture_missing(published.__setitem__, name, stopped=lambda: False)
    assert published == {graph: name_of(GRID.keys[graph]).upper() for graph in missing}
    assert len(named) == -(-len(missing) // BATCH)
    assert named[-1] == list(range(len(GRID.keys)))


def test_the_background_ends_between_two_batches() -> None:
    found, published = capture(FakeGpu()), list[int]()
    found.capture_missing(
        lambda graph, executable: published.append(graph),
        lambda available: None,
        stopped=lambda: len(published) >= BATCH,
    )
    assert published == list(range(BATCH))
    assert found.captured() == published
