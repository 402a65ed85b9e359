"""Which calls wait for a resident scheduler.

    python tests/bench/gpu/beside_resident.py OUTPUT_DIRECTORY

Method: the scripted engine's scheduler serves 64 streams in steps of 1 ms. Each call is made beside
it; a thread parks the scheduler after 150 ms, by a store to mapped host memory, so that a call that
waits comes back: it "waits" where the scheduler then stands still. Only calls that let go of
Python's lock can be tried so; PyTorch's first stream did not. Afterwards every stream's tokens are
checked against the plain rule.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from blink_persistent.gpu import structs
from blink_persistent.gpu.compile import compile_program
from blink_persistent.gpu.device_scheduler import DeviceScheduler
from blink_persistent.gpu.driver import Gpu
from blink_persistent.gpu.structs import layout_assertions
from blink_persistent.testing.device_harness import DeviceHarness
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

STREAMS = ScriptedShape(
    max_rows=64, max_sequences=8, max_prefill_tokens=512, context_length=32768,
    block_count=2100, block_size=1024,
)  # fmt: skip
STREAM_TOKENS = 32_000
PATIENCE_SECONDS = 0.15
LONG_GRAPH = 300  # kernels


class Probe:
    """Makes calls beside the scheduler and keeps what became of each."""

    def __init__(self, scheduler: DeviceScheduler) -> None:
        self._scheduler = scheduler
        self.found: list[dict[str, Any]] = []

    def __call__(self, name: str, call: Callable[[], Any]) -> Any:
        watchdog = threading.Timer(PATIENCE_SECONDS, self._scheduler.ask_to_park)
        watchdog.start()
        began = time.perf_counter()
        try:
            result = call()
        finally:
            took = time.perf_counter() - began
            watchdog.cancel()
            watchdog.join()
        waits = took >= PATIENCE_SECONDS
        if waits:
            self._scheduler.park()
            self._scheduler.launch()
        self.found.append({"call": name, "waits": waits, "ms": 1e3 * took})
        print(f"{name:45s} {'WAITS' if waits else '':6s} {1e3 * took:8.2f} ms", flush=True)
        return result


def driver_calls(probe: Probe, gpu: Gpu) -> None:
    """The driver's own calls, on a stream that was made before the scheduler ran."""
    driver = gpu.driver
    probe("cuMemGetInfo", gpu.free_bytes)
    memory = [
        probe(f"cuMemAlloc of {size >> 20} MiB", lambda size=size: gpu.call("cuMemAlloc", size))
        for size in (1 << 20, 1 << 28)
    ]
    probe("memset and synchronize, stream of before", lambda: _fill(gpu, memory[0], gpu.io))
    probe("copy and synchronize, stream of before", lambda: gpu.put(int(memory[0]), np.ones(9)))
    flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    streams = [
        probe(f"cuStreamCreate {i}", lambda: gpu.call("cuStreamCreate", flags)) for i in range(12)
    ]
    for i, stream in enumerate(streams):
        probe(f"memset and synchronize, new stream {i}", lambda s=stream: _fill(gpu, memory[0], s))
    host = probe("cuMemHostAlloc of 1 MiB", lambda: gpu.call("cuMemHostAlloc", 1 << 20, 0))
    event = probe("cuEventCreate", lambda: gpu.call("cuEventCreate", 0))
    cubin = compile_program(
        "scripted_gpu.cu", arch=gpu.arch, epilogue=layout_assertions(structs.SCRIPTED_STRUCTS)
    )
    module = probe("cuModuleLoadData", lambda: gpu.call("cuModuleLoadData", cubin))
    name = b"blink_scripted_filler"
    filler = probe("cuModuleGetFunction", lambda: gpu.call("cuModuleGetFunction", module, name))
    probe("cuFuncLoad", lambda: gpu.call("cuFuncLoad", filler))
    probe("launch and synchronize", lambda: _launch(gpu, filler))
    graph = probe(f"capture of {LONG_GRAPH} kernels", lambda: _captured(gpu, filler))
    executables = []
    for i in range(40):
        made = probe(f"cuGraphInstantiate {i}", lambda: _instantiate(gpu, graph))
        probe(f"cuGraphUpload and synchronize {i}", lambda made=made: _upload(gpu, made))
        executables.append(made)
    for i, made in enumerate(executables[:3]):
        probe(f"cuGraphExecDestroy {i}", lambda made=made: gpu.call("cuGraphExecDestroy", made))
    probe("cuGraphDestroy", lambda: gpu.call("cuGraphDestroy", graph))
    probe("cuEventDestroy", lambda: gpu.call("cuEventDestroy", event))
    probe("cuStreamDestroy", lambda: gpu.call("cuStreamDestroy", streams[0]))
    for address in memory:
        probe("cuMemFree", lambda address=address: gpu.call("cuMemFree", address))
    probe("cuMemFreeHost", lambda: gpu.call("cuMemFreeHost", host))
    second = probe("cuModuleLoadData again", lambda: gpu.call("cuModuleLoadData", cubin))
    probe("cuModuleUnload", lambda: gpu.call("cuModuleUnload", second))


def _fill(gpu: Gpu, address: Any, stream: Any) -> None:
    gpu.call("cuMemsetD8Async", address, 0, 1 << 16, stream)
    gpu.call("cuStreamSynchronize", stream)


def _launch(gpu: Gpu, kernel: Any) -> None:
    gpu.launch(kernel, 1, 32, gpu.io)
    gpu.call("cuStreamSynchronize", gpu.io)


def _captured(gpu: Gpu, kernel: Any) -> Any:
    mode = gpu.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    gpu.call("cuStreamBeginCapture", gpu.io, mode)
    for _ in range(LONG_GRAPH):
        gpu.launch(kernel, 1, 32, gpu.io)
    return gpu.call("cuStreamEndCapture", gpu.io)


def _instantiate(gpu: Gpu, graph: Any) -> Any:
    kinds = gpu.driver.CUgraphInstantiate_flags
    parameters = gpu.driver.CUDA_GRAPH_INSTANTIATE_PARAMS()
    parameters.flags = kinds.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
    return gpu.call("cuGraphInstantiateWithParams", graph, parameters)


def _upload(gpu: Gpu, executable: Any) -> None:
    gpu.call("cuGraphUpload", executable, gpu.io)
    gpu.call("cuStreamSynchronize", gpu.io)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    requests = {
        slot: ScriptedRequest((5, 6, 7 + slot), max_tokens=STREAM_TOKENS, ignore_eos=True)
        for slot in range(64)
    }
    with DeviceHarness(STREAMS, step_ns=1_000_000) as streams:
        scheduler = streams.scheduler
        assert isinstance(scheduler, DeviceScheduler)
        streams.submit(requests)
        scheduler.launch()
        streams.wait_until(lambda: streams.ring.field("decode_launches") > 3, "decode steps")
        probe = Probe(scheduler)
        try:
            driver_calls(probe, streams.gpu)
        finally:
            (arguments.output / "beside-resident.json").write_text(
                json.dumps(probe.found, indent=1)
            )
        for _ in range(20):
            began = time.perf_counter()
            scheduler.park()
            parked = time.perf_counter()
            scheduler.launch()
            took = parked - began, time.perf_counter() - parked
            print("park: s until it stands, until it is under way again", *took)
        scheduler.park()
        for slot, request in requests.items():
            output = streams.output(slot)
            assert output == request.answer(STREAMS).tokens[: len(output)], f"slot {slot}"
        print("steps", streams.ring.field("steps"), "parks", streams.ring.field("parks"))


if __name__ == "__main__":
    main()
