"""A whole graph grid: time to READY, device memory, and what its provisioning asks of others.

    python tests/bench/gpu/grid_capture.py OUTPUT_DIRECTORY --model smollm2-135m [--rows 256]

Method: random weights in bfloat16, the fine grid of `--rows` rows, 2,048 tokens and 8 sequences.
"all": provisioned with every graph, beside nothing; the first time Triton's cache may be empty.
"background": provisioned with the coarse part, then 64 requests are served again and again while
the rest is captured; every answer has its length. "beside": provisioned and closed beside the
scripted engine's scheduler, 64 streams of 4 ms steps, which stands still for each slice; a slice
is timed from the end of the streams' running step to the relaunch of their scheduler. The streams'
tokens are checked against the plain rule; those that have ended too early are counted. Parts of one
capture are timed by the host's clock.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import resource
import tempfile
import time
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from blink_persistent.engines import TOKEN_GRANULARITY
from blink_persistent.engines.cuda.provisioned import CudaProvisioned
from blink_persistent.gpu.graphs import instantiate
from blink_persistent.graph_grid import DECODE, MIXED, PREFILL, GraphGrid, GraphKey, fine_grid
from blink_persistent.ring import Reason
from blink_persistent.testing.cuda_harness import CudaHarness, Exclusive, cuda_version, provision
from blink_persistent.testing.device_harness import DeviceHarness
from blink_persistent.testing.parked_slices import ParkedSlices, Slice
from blink_persistent.testing.scripted_request import ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape

CONTEXT_LENGTH = 2048
STREAMS = ScriptedShape(
    max_rows=64, max_sequences=8, max_prefill_tokens=512, context_length=32768,
    block_count=2100, block_size=1024,
)  # fmt: skip
STREAM_TOKENS = 32_000
STREAM_STEP_NS = 4_000_000  # so that streams outlast both turns
SERVED = ScriptedShape(max_rows=64, context_length=CONTEXT_LENGTH, vocabulary_size=49152)


def start(
    model: str, grid: GraphGrid, *, exclusive: Exclusive = nullcontext, **options: Any
) -> CudaProvisioned:
    with tempfile.TemporaryDirectory() as directory:
        version = cuda_version(
            Path(directory),
            engine={"weights": "random", "model": model, "block_count": 4000, **options},
            context_length=CONTEXT_LENGTH,
            memory_fraction=0.8,
        )
        return provision(version, grid, exclusive=exclusive)


def measure_all(model: str, grid: GraphGrid) -> dict[str, Any]:
    """Everything captured before it is ready; then what one capture is made of."""
    began = time.perf_counter()
    engine = start(model, grid)
    ready = time.perf_counter() - began
    found = {
        "ready_s": ready,
        "graphs": len(grid.keys),
        "graph_bytes": engine.graph_bytes,
        "host_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "parts": {
            name: parts_of(engine, key)
            for name, key in {
                "decode": GraphKey(DECODE, 64, 64),
                "prefill": GraphKey(PREFILL, 8, 2048),
                "mixed": GraphKey(MIXED, 8, 256, 64),
            }.items()
        },
    }
    began = time.perf_counter()
    engine.close()
    return {**found, "close_s": time.perf_counter() - began}


def parts_of(engine: CudaProvisioned, key: GraphKey) -> dict[str, float]:
    """Milliseconds of one more capture of a key: recording, instantiation with upload."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    moments = [time.perf_counter()]
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        engine.step(key)  # this thread's libraries have nothing yet
        torch.cuda.synchronize()
        moments.append(time.perf_counter())
        graph.capture_begin(capture_error_mode="thread_local")
        engine.step(key)
        graph.capture_end()
    moments.append(time.perf_counter())
    instantiate(engine.gpu, engine.gpu.driver.CUgraph(graph.raw_cuda_graph()))
    moments.append(time.perf_counter())
    eager, record, upload = (b - a for a, b in itertools.pairwise(moments))
    return {"eager_ms": 1e3 * eager, "record_ms": 1e3 * record, "upload_ms": 1e3 * upload}


def measure_background(model: str, grid: GraphGrid) -> dict[str, Any]:
    """Ready with the coarse part; the rest comes while 64 requests at a time are served."""
    began, parked = time.perf_counter(), ParkedSlices()
    engine = start(model, grid, exclusive=parked, capture="background")
    ready = time.perf_counter() - began
    first = sum(1 for graph in engine.graphs if int(graph))
    requests = {
        slot: ScriptedRequest(tuple(range(9, 9 + 20 + slot)), max_tokens=64, ignore_eos=True)
        for slot in range(64)
    }
    spans: list[float] = []
    with CudaHarness(SERVED, engine) as harness, parked.beside(harness.scheduler):
        harness.scheduler.launch()
        began = time.perf_counter()
        done = harness.complete()
        while not done.done() or len(spans) < 2:
            moment = time.perf_counter()
            harness.submit(requests)
            harness.wait_for_ends(requests)
            spans.append(time.perf_counter() - moment)
            statuses = harness.statuses()
            assert all(statuses[slot].reason == Reason.MAX_TOKENS for slot in requests)
            assert all(statuses[slot].generated == 64 for slot in requests)
            harness.release(requests)
            harness.wait_for_empty(requests)
        done.result()
        seconds = time.perf_counter() - began
    return {
        "ready_s": ready,
        "first": first,
        "rest_s": seconds,
        "wave_s": spans,
        "slices": summary(parked.slices),
    }


def measure_beside(model: str, grid: GraphGrid) -> dict[str, Any]:
    """Twice provisioned and closed beside 64 streams: loading, and with all loaded already."""
    found: dict[str, Any] = {}
    with DeviceHarness(STREAMS, step_ns=STREAM_STEP_NS) as streams:
        requests = {
            slot: ScriptedRequest((5, 6, 7 + slot), max_tokens=STREAM_TOKENS, ignore_eos=True)
            for slot in range(64)
        }
        streams.submit(requests)
        streams.scheduler.launch()
        streams.wait_until(lambda: streams.ring.field("decode_launches") > 3, "decode steps")
        for name in ("first", "second"):
            parked = ParkedSlices(streams.scheduler)
            steps, began = streams.ring.field("steps"), time.perf_counter()
            engine = start(model, grid, exclusive=parked)
            ready, provisioning = time.perf_counter(), len(parked.slices)
            engine.close()
            closed = time.perf_counter()
            found[name] = {
                "ready_s": ready - began,
                "close_s": closed - ready,
                "steps": streams.ring.field("steps") - steps,
                "provision": summary(parked.slices[:provisioning]),
                "close": summary(parked.slices[provisioning:]),
            }
            print(model, name, json.dumps(found[name])[:1500], flush=True)
        streams.scheduler.park()
        found["streams_ended"] = streams.ring.field("completions")
        generated = [status.generated for status in streams.statuses()[:64]]
        for slot, request in requests.items():
            expected = request.answer(STREAMS).tokens[: generated[slot]]
            assert streams.output(slot)[: generated[slot]] == expected, f"slot {slot}"
        streams.scheduler.launch()
        streams.cancel(requests)
    return {**found, "streams_generated": min(generated)}


def summary(slices: list[Slice]) -> dict[str, Any]:
    """By what they were for: how many, the longest, together; in milliseconds."""
    by_use: dict[str, list[float]] = defaultdict(list)
    for what, _, held in slices:
        by_use[what].append(1e3 * held)
    return {
        "slices": len(slices),
        "longest_ms": max((1e3 * s.held_s for s in slices), default=0.0),
        "longest_wait_ms": max((1e3 * s.wait_s for s in slices), default=0.0),
        "together_ms": sum(1e3 * s.held_s for s in slices),
        "uses": {
            what: {"count": len(ms), "longest_ms": max(ms), "together_ms": sum(ms)}
            for what, ms in sorted(by_use.items(), key=lambda item: -max(item[1]))
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--only", choices=("all", "background", "beside"), action="append")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    arguments.output.mkdir(parents=True, exist_ok=True)
    grid = fine_grid(
        arguments.rows,
        2048,
        max_sequences=8,
        granularity=TOKEN_GRANULARITY,
        max_mixed_tokens=256,
    )
    parts = {"all": measure_all, "background": measure_background, "beside": measure_beside}
    for model in arguments.model:
        found = {}
        for name in arguments.only or parts:
            found[name] = parts[name](model, grid)
            print(model, name, json.dumps(found[name])[:1500], flush=True)
            path = arguments.output / f"grid-{model}.json"
            path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
