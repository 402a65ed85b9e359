"""What the engine `cuda` does beside resident schedulers: capture, load, give back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from blink_persistent.graph_grid import fine_grid
from blink_persistent.graph_lookup import coarse_part
from blink_persistent.ring import Condition, Reason
from blink_persistent.testing.device_harness import DeviceHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.testing.memory_checkpoint import (
    MemoryCheckpoint,
    random_checkpoint,
    tiny_architecture,
)

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from blink_persistent.engines.cuda.provisioned import CudaProvisioned
from blink_persistent.engines.cuda.weight_file import write_weights
from blink_persistent.testing.cuda_harness import (
    CudaHarness,
    Exclusive,
    HostDrivenCudaHarness,
    cuda_version,
    provision,
)
from blink_persistent.testing.greedy import check_greedy
from blink_persistent.testing.parked_slices import ParkedSlices

pytestmark = pytest.mark.gpu

SHAPE = ScriptedShape(max_rows=16, context_length=256, vocabulary_size=1000)
GRID = fine_grid(16, 256, max_sequences=4, granularity=16, max_mixed_tokens=64)
STREAMS = ScriptedShape(
    max_rows=64, max_sequences=8, max_prefill_tokens=512, context_length=32768, block_count=2100,
    block_size=1024,
)  # fmt: skip
STREAM_TOKENS = 32_000  # of which few are waited for
ROUNDS, SETTLED = 8, 2  # the first one of which a later one may differ in nothing


@pytest.fixture(scope="module")
def checkpoint() -> MemoryCheckpoint:
    """A small model whose weights are bfloat16 values, so that a float32 reference has the same."""
    found = random_checkpoint(
        tiny_architecture(
            hidden_size=512,
            intermediate_size=1024,
            vocabulary_size=1000,
            context_length=2048,
            heads=8,
            kv_heads=2,
            head_dim=128,
        ),
        seed=9,
    )
    for name, tensor in found.tensors.items():
        found.tensors[name] = torch.from_numpy(tensor).bfloat16().float().numpy()
    return found


@pytest.fixture
def serve(checkpoint: MemoryCheckpoint, tmp_path: Path) -> Callable[..., CudaProvisioned]:
    """Provisions the small model with further options of the engine."""
    write_weights(checkpoint, tmp_path / "model.safetensors")

    def start(exclusive: Exclusive | None = None, **options: Any) -> CudaProvisioned:
        version = cuda_version(
            tmp_path,
            engine={"block_size": 16, "block_count": 400, **options},
            context_length=256,
            memory_fraction=0.4,
        )
        return provision(version, GRID, **({"exclusive": exclusive} if exclusive else {}))

    return start


def prompts(count: int) -> dict[int, ScriptedRequest]:
    rng = np.random.default_rng(5)
    return {
        slot: ScriptedRequest(
            tuple(rng.integers(0, 1000, int(rng.integers(1, 120))).tolist()), max_tokens=100
        )
        for slot in range(count)
    }


def check(checkpoint: MemoryCheckpoint, harness: CudaHarness, slots: dict[int, Any]) -> None:
    plain = checkpoint.dequantized()
    statuses = harness.statuses()
    assert all(statuses[slot].reason == Reason.MAX_TOKENS for slot in slots)
    answers = ((request.prompt, harness.output(slot)) for slot, request in slots.items())
    check_greedy(checkpoint.architecture, plain, answers)


def launches(harness: CudaHarness) -> set[int]:
    """Numbers of the graphs that have been launched."""
    harness.ring.pull(harness.ring.mirror.header)
    counts = harness.ring.mirror.header["graph_launches"][0][: len(GRID.keys)]
    return set(np.flatnonzero(counts).tolist())


def test_the_rest_of_the_grid_is_captured_while_requests_run(
    checkpoint: MemoryCheckpoint, serve: Callable[..., CudaProvisioned]
) -> None:
    coarse = set(coarse_part(GRID))
    parked = ParkedSlices()
    engine = serve(parked, capture="background")
    assert {i for i, graph in enumerate(engine.graphs) if int(graph)} == coarse
    with CudaHarness(SHAPE, engine) as harness, parked.beside(harness.scheduler):
        requests, waves = prompts(32), 0
        harness.scheduler.launch()
        done = harness.complete()
        while not done.done() or waves < 2:
            harness.submit(requests)
            harness.wait_for_ends(requests)
            check(checkpoint, harness, requests)
            harness.release(requests)
            harness.wait_for_empty(requests)
            waves += 1
        done.result()
        assert {each.what for each in parked.slices} == {"instantiate"}
        assert all(int(graph) for graph in engine.graphs)
        eleven = prompts(11)  # rows, which no coarse graph holds exactly
        harness.submit(eleven)
        harness.wait_for_ends(eleven)
        check(checkpoint, harness, eleven)
        assert launches(harness) - coarse
        assert harness.scheduler.condition() == Condition.RUNNING
        assert harness.scheduler.error() is None


def test_the_host_drives_a_grid_that_was_captured_late(
    checkpoint: MemoryCheckpoint, serve: Callable[..., CudaProvisioned]
) -> None:
    engine = serve(capture="background")
    engine.complete(lambda graph, executable: None).result()
    with HostDrivenCudaHarness(SHAPE, engine, polls=True) as harness:
        requests = prompts(11)
        harness.submit(requests)
        harness.scheduler.launch()
        harness.wait_for_ends(requests)
        check(checkpoint, harness, requests)


def test_versions_leave_while_another_one_captures(serve: Callable[..., CudaProvisioned]) -> None:
    """PyTorch fails to give memory back during a capture, of which there are many then."""
    leaving = [serve() for _ in range(3)]
    engine = serve(capture="background")
    try:
        done = engine.complete(lambda graph, executable: None)
        for each in leaving:
            each.close()
        done.result()
        assert all(int(graph) for graph in engine.graphs)
    finally:
        engine.close()


class Held(NamedTuple):
    """Device memory after a round, in bytes: nobody's, PyTorch's tensors', all of PyTorch's."""

    free: int
    allocated: int
    reserved: int


def test_a_version_comes_and_goes_beside_64_streams(
    checkpoint: MemoryCheckpoint, serve: Callable[..., CudaProvisioned]
) -> None:
    """Also again, when everything is loaded already; no stream fails, no byte is lost.

    The first rounds load what stays loaded, and the driver takes memory for graphs, which it uses
    again. From then on all rounds are alike.
    """
    with DeviceHarness(STREAMS, step_ns=1_000_000) as streams:
        requests = {
            slot: ScriptedRequest((5, 6, 7 + slot), max_tokens=STREAM_TOKENS, ignore_eos=True)
            for slot in range(64)
        }
        streams.submit(requests)
        streams.scheduler.launch()
        streams.wait_until(lambda: streams.ring.field("decode_launches") > 3, "decode steps")
        held, counts = list[Held](), list[int]()
        for _ in range(ROUNDS):
            parked = ParkedSlices(streams.scheduler)
            steps = streams.ring.field("steps")
            engine = serve(parked)
            with CudaHarness(SHAPE, engine, borrowed=True) as harness:
                few = prompts(4)
                harness.submit(few)
                harness.scheduler.launch()
                harness.wait_for_ends(few)
                check(checkpoint, harness, few)
            counts.append(len(parked.slices))
            engine.close()
            assert streams.ring.field("steps") > steps
            torch_has = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            held.append(Held(streams.gpu.free_bytes(), *torch_has))
        rounds = "\n".join(map(str, held))
        print(rounds, f"slices of each: {counts}", sep="\n")
        first, last = held[SETTLED], held[-1]
        assert last.allocated <= first.allocated, f"tensors outlive their versions:\n{rounds}"
        assert last.reserved <= first.reserved, f"PyTorch keeps more and more:\n{rounds}"
        assert last.free >= first.free, f"the driver keeps more and more:\n{rounds}"
        assert max(counts[SETTLED:]) <= counts[0], counts
        assert streams.ring.field("completions") == 0, "a stream ended"
        streams.scheduler.park()
        assert streams.scheduler.error() is None
        for slot, request in requests.items():
            output = streams.output(slot)
            assert output == request.answer(STREAMS).tokens[: len(output)]
            assert len(output) > 3
