"""Plans on a GPU: executed, captured, made ready for launch from the device, and served.

For GPUs of compute capability 8.0, 8.6, 8.9 and 12.x with either TensorRT; the full one also builds
for others. Not run yet: this project's GPU is a Hopper, and has neither.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from blink_persistent.engines import ProvisionLimits
from blink_persistent.engines.tensorrt.engine import TensorRtEngine
from blink_persistent.engines.tensorrt.flavour import FLAVOURS
from blink_persistent.gpu.presence import architecture as architecture_of_gpu
from blink_persistent.graph_grid import DECODE, PREFILL, GraphGrid
from blink_persistent.ring import Reason
from blink_persistent.samplers.default import DefaultSampler
from blink_persistent.testing.cuda_harness import CudaHarness
from blink_persistent.testing.gpu_server import token_ids, write_gpu_version
from blink_persistent.testing.greedy import check_greedy
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.backend import BuildResult, ModelVersion
from blink_server.testing.memory_checkpoint import (
    MemoryCheckpoint,
    random_checkpoint,
    tiny_architecture,
)
from blink_server.testing.server_process import ServerProcess

pytestmark = pytest.mark.gpu

KINDS = [("rtx", "native"), ("full", "plugin"), ("full", "native")]
RTX_TARGETS = ("sm_80", "sm_86", "sm_89", "sm_120", "sm_121")
LIMITS = {"context_length": 256, "max_rows": 16, "max_prefill_tokens": 256, "slots": 768}
SHAPE = ScriptedShape(max_rows=16, context_length=256, vocabulary_size=1000)


@pytest.fixture(scope="module")
def checkpoint() -> MemoryCheckpoint:
    """A small model whose weights are bfloat16 values, so that a float32 reference has the same."""
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "vocabulary_size": 1000}
    heads = {"heads": 8, "kv_heads": 2, "head_dim": 64, "context_length": 2048}
    found = random_checkpoint(tiny_architecture(**sizes, **heads), seed=9)
    for name in found.tensors:
        rounded = np.asarray(found.tensors[name]).astype(ml_dtypes.bfloat16)
        found.tensors[name] = rounded.astype(np.float32)
    return found


@pytest.fixture(params=KINDS, ids=["-".join(kind) for kind in KINDS])
def kind(request: pytest.FixtureRequest, gpu_present: None) -> tuple[str, str]:
    """A flavour that is installed and knows this GPU, and an attention."""
    flavour, attention = request.param
    if FLAVOURS[flavour].module_name() is None:
        pytest.skip(f"{FLAVOURS[flavour].title} is not installed")
    target = architecture_of_gpu(0)
    if flavour == "rtx" and target not in RTX_TARGETS:
        pytest.skip(f"{FLAVOURS[flavour].title} does not run on {target}")
    if flavour == "full" and attention == "native":
        version = FLAVOURS[flavour].load().__version__
        if int(version.split(".")[0]) < 11:
            pytest.skip(f"native attention needs TensorRT 11, this is {version}")
    return flavour, attention


@pytest.fixture
def built(kind: tuple[str, str], checkpoint: MemoryCheckpoint, tmp_path: Path) -> BuildResult:
    """The model's plan in tmp_path."""
    flavour, attention = kind
    return TensorRtEngine().build(
        checkpoint,
        tmp_path,
        limits=LIMITS,
        options={"flavour": flavour, "attention": attention, "block_size": 16},
        progress=lambda stage, part: None,
    )


@pytest.fixture
def engine(built: BuildResult, tmp_path: Path) -> Any:
    """Provisioned, to be closed; with few KV blocks, so that requests are paused."""
    options = {**built.config["engine"], "block_count": 90}
    limits = {**built.config["limits"], "memory_fraction": 0.5}
    grid = GraphGrid.from_json(built.graph_grid)
    (tmp_path / "graph_grid.json").write_text(json.dumps(built.graph_grid))
    version = ModelVersion(
        "model", 1, tmp_path, {"engine": options, "limits": limits, "eos_token_ids": []}
    )
    sampling = ProvisionLimits(threads=1, sampler=DefaultSampler())
    return TensorRtEngine().provision(version, grid, sampling, progress=lambda stage, part: None)


def test_every_key_is_ready_for_launch_and_counts(engine: Any) -> None:
    try:
        gpu, grid = engine.gpu, engine.grid
        assert all(engine.graphs)
        for phase in (DECODE, PREFILL):
            graph, _ = grid.of_phase(phase)[-1]
            for _ in range(3):
                gpu.call("cuGraphLaunch", engine.graphs[graph], gpu.io)
            gpu.call("cuStreamSynchronize", gpu.io)
            completion = engine.tables.buffers[phase].completion
            assert gpu.fetch(completion, np.uint32, 1)[0] == 3
    finally:
        engine.close()


def test_the_scheduler_serves_the_plan(engine: Any, checkpoint: MemoryCheckpoint) -> None:
    rng, plain = np.random.default_rng(1), checkpoint.dequantized()
    requests = {
        slot: ScriptedRequest(
            tuple(rng.integers(0, 1000, int(rng.integers(1, 120))).tolist()), max_tokens=60
        )
        for slot in range(32)
    }
    with CudaHarness(SHAPE, engine) as harness:
        harness.submit(requests)
        harness.scheduler.launch()
        harness.wait_for_ends(requests)
        statuses = harness.statuses()
        outputs = {slot: harness.output(slot) for slot in requests}
        assert harness.ring.field("preemptions") > 0
        assert harness.scheduler.error() is None
    assert all(statuses[slot].reason == Reason.MAX_TOKENS for slot in requests)
    answers = ((request.prompt, outputs[slot]) for slot, request in requests.items())
    check_greedy(checkpoint.architecture, plain, answers)


@pytest.fixture
async def server(
    built: BuildResult, tmp_path: Path, short_path: Path
) -> AsyncIterator[ServerProcess]:
    """A server of the plan."""

    def copy(directory: Path) -> None:
        shutil.copy(tmp_path / "model.plan", directory)

    write_gpu_version(
        short_path / "repository",
        "tiny",
        engine={**built.config["engine"], "block_count": 400},
        limits=built.config["limits"],
        grid=GraphGrid.from_json(built.graph_grid),
        write_more=copy,
    )
    made = await ServerProcess.start(
        short_path / "repository", short_path / "run", "--settle-secs=0.05"
    )
    yield made
    made.kill_everything()
    await made.exit()
    print(made.output)  # shown where the test fails


async def test_text_is_served_from_the_plan(
    server: ServerProcess, checkpoint: MemoryCheckpoint
) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed")
    url = await server.ready(seconds=300)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=120)
    prompt = [5, 6, 7, 8]
    answer = await client.completions.create(
        model="tiny", prompt=prompt, max_tokens=40, temperature=0
    )
    found = token_ids(answer.choices[0].text)
    assert len(found) == 40
    check_greedy(checkpoint.architecture, checkpoint.dequantized(), [(prompt, found)])
