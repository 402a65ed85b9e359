"""The workload of the measured peers over HTTP, on a server with chunked prefill in both forms.

    python tests/bench/gpu/http_workload.py OUTPUT --model llama-3-8b --prefill mixed
    python tests/bench/gpu/http_workload.py OUTPUT --scripted --seconds 2 ...   # without a GPU

Method: a server of one HTTP worker with random weights at the model's full shape and the grid that
an import writes. `blink-server bench interfere` asks for random prompts of 1,024 tokens and answers
of 256, both +- 30 %, at Poisson arrivals; all requests count. It has cores of its own. Placements,
each without and then with a neighbour that compresses or sweeps 256 MiB on every core named last:
"isolated" and "shared", the server on all cores that are left, and neighbours on all of these;
"reserved" and "reserved, hogs", all of the server on two cores, and neighbours on the rest. The
server starts on all cores; its threads are moved once it is ready. A peer that runs under taskset
is measured by the same `blink-server bench interfere`; with --output=OUTPUT/MODEL-PEER-together, or
-reserved, it stands in the table.

Each run leaves results.json, requests.jsonl and the server's own counts in a directory of its own
under OUTPUT; the table is made of all that lie there, so that one call can add to another's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink_persistent.engines import TOKEN_GRANULARITY
from blink_persistent.engines.cuda.architectures import ARCHITECTURES
from blink_persistent.engines.cuda.build import default_chunk
from blink_persistent.graph_grid import GraphGrid, fine_grid
from blink_persistent.testing.gpu_server import MAX_SEQUENCES, VOCABULARY, write_gpu_version
from blink_server.bench.interference import parse_cores
from blink_server.testing.server_process import ServerProcess, processes

FORMS = ("alternating", "mixed")
LONGEST = 2048  # tokens of a request, and of a prefill step
READY_SECONDS = 500.0
ALONE = {"together": "isolated", "reserved": "reserved"}
BESIDE = {"together": "shared", "reserved": "reserved, hogs"}
CONDITIONS = ("isolated", "shared", "reserved", "reserved, hogs")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a server runs, and where its neighbours do."""

    name: str
    server: Sequence[int]
    neighbours: Sequence[int]


def placements(options: argparse.Namespace) -> list[Placement]:
    """Those asked for."""
    reserved, others = (parse_cores(each) for each in (options.reserved_cores, options.other_cores))
    together = sorted({*reserved, *others})
    known = {
        "together": Placement("together", together, together),
        "reserved": Placement("reserved", reserved, others),
    }
    return [known[name] for name in options.placement]


def chunk_of(options: argparse.Namespace, model: str) -> int:
    """As asked, or as many as an import chooses."""
    experts = ARCHITECTURES[model].experts if model in ARCHITECTURES else 0
    return int(options.chunk or default_chunk(experts=experts))


def grid_of(options: argparse.Namespace, chunk: int, form: str) -> GraphGrid:
    """As an import writes it; without mixed shapes where prefill and decode take turns."""
    return fine_grid(
        options.max_rows,
        LONGEST,
        max_sequences=MAX_SEQUENCES,
        granularity=TOKEN_GRANULARITY,
        max_mixed_tokens=chunk if form == "mixed" else 0,
    )


def write_version(repository: Path, options: argparse.Namespace, model: str, form: str) -> int:
    """The version that is served; its vocabulary's size."""
    chunk = chunk_of(options, model)
    limits = {
        **{"context_length": LONGEST, "max_rows": options.max_rows, "max_prefill_tokens": LONGEST},
        **{"slots": 1024, "max_queue": 512, "memory_fraction": 0.9},
        **{"prefill": form, "prefill_chunk": chunk},
    }
    if options.scripted:
        blocks = 1 + options.max_rows * LONGEST // 16
        engine = {"name": "scripted", "vocabulary_size": VOCABULARY, "block_count": blocks}
        engine |= {"step_microseconds": 3000}
        vocabulary = VOCABULARY
    else:
        engine = {"name": "cuda", "weights": "random", "model": model}
        vocabulary = ARCHITECTURES[model].vocabulary_size
    grid = grid_of(options, chunk, form)
    write_gpu_version(
        repository, "model", engine=engine, vocabulary=vocabulary, limits=limits, grid=grid
    )
    return vocabulary


def move(server: ServerProcess, cores: Sequence[int]) -> int:
    """All threads of a server and its processes to these cores; how many there are."""
    moved = 0
    for pid in {server.pid, *processes(server.runtime)}:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), cores)
                moved += 1
    return moved


@contextlib.contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """What is started inside runs on these."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


async def measure(
    url: str, options: argparse.Namespace, placement: Placement, vocabulary: int, place: Path
) -> None:
    """One placement, without neighbours and with them, from a process of its own."""
    cores = ",".join(map(str, placement.neighbours))
    command = [
        *(sys.executable, "-m", "blink_server", "bench", "interfere", f"--url={url}"),
        *(f"--rate={options.rate}", f"--duration-secs={options.seconds}"),
        *("--warm-up-secs=0", "--cool-down-secs=0", "--no-plots", f"--output={place}"),
        *(f"--prompt-ids={vocabulary}", f"--repeats={options.repeats}", f"--seed={options.seed}"),
        *(f"--generator-cores={options.generator_cores}", f"--neighbour-cores={cores}"),
    ]
    child = await asyncio.create_subprocess_exec(*command)
    if await child.wait() != 0:
        raise SystemExit(f"the load generator failed: {' '.join(command)}")
    counts = await asyncio.to_thread(
        lambda: urllib.request.urlopen(f"{url}/metrics", timeout=30).read()
    )
    (place / "metrics.txt").write_bytes(counts)


async def serve(options: argparse.Namespace, model: str, form: str) -> None:
    """Every placement, on one server."""
    chosen = placements(options)
    with tempfile.TemporaryDirectory(prefix="blink-", ignore_cleanup_errors=True) as directory:
        repository, runtime = Path(directory, "repository"), Path(directory, "run")
        vocabulary = write_version(repository, options, model, form)
        arguments = ["--settle-secs=0.2", "--workers=1"]
        if not options.scripted:
            arguments.append(f"--scheduler={options.scheduler}")
        with on_cores(sorted({core for each in chosen for core in (*each.server,)})):
            server = await ServerProcess.start(repository, runtime, *arguments)
        try:
            url = await server.ready(seconds=READY_SECONDS)
            if not any("model:1 READY" in line for line in server.lines):
                raise SystemExit(f"the model is not ready:\n{server.output}")
            for placement in chosen:
                moved = move(server, placement.server)
                print(model, form, placement, f"{moved} threads", flush=True)
                place = options.output / f"{model}-{form}-{placement.name}"
                await measure(url, options, placement, vocabulary, place)
            await server.stop()
        finally:
            server.kill_everything()
            log = options.output / f"{model}-{form}-server.log"
            log.write_text("\n".join(server.lines) + "\n", encoding="utf-8")


def row_of(place: Path, figures: dict[str, Any]) -> dict[str, Any]:
    """A condition's figures, in milliseconds."""
    model_and_form, _, placement = place.name.rpartition("-")
    model, _, form = model_and_form.rpartition("-")
    names = BESIDE if figures["condition"] == "beside" else ALONE
    return {
        **{"shape": model, "prefill": form, "condition": names[placement]},
        "rate": figures["rate"],
        "requests": f"{figures['succeeded']} of {figures['requests']}",
        **{
            f"{latency} {rank}": (figures[latency] or {}).get(rank)
            for latency in ("ttft", "tpot", "itl")
            for rank in ("p50", "p99")
        },
        "out tok/s": figures["output_token_throughput"],
    }


def table(output: Path) -> tuple[list[dict[str, Any]], str]:
    """All results in a directory, and as markdown; the last columns over the same one isolated."""
    rows = [
        row_of(path.parent, figures)
        for path in output.glob("*/results.json")
        for figures in json.loads(path.read_text(encoding="utf-8"))["figures"]
    ]
    rows.sort(key=lambda row: (row["shape"], row["prefill"], CONDITIONS.index(row["condition"])))
    isolated = {(r["shape"], r["prefill"]): r for r in rows if r["condition"] == "isolated"}
    for row in rows:
        base = isolated.get((row["shape"], row["prefill"]), {})
        for name in ("ttft p50", "tpot p50", "out tok/s"):
            there = base.get(name) and row[name] is not None
            row[f"{name} over isolated"] = row[name] / base[name] if there else None
    if not rows:
        return [], "no results\n"
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    lines += ["| " + " | ".join(map(shown, row.values())) + " |" for row in rows]
    return rows, "\n".join(lines) + "\n"


def shown(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else "" if value is None else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    add = parser.add_argument
    add("--model", action="append", choices=ARCHITECTURES, help="llama-3-8b by default")
    add("--prefill", action="append", choices=FORMS, help="both by default")
    add("--placement", action="append", choices=list(ALONE), help="both by default")
    add("--chunk", type=int, help="prompt tokens for which decoding rows wait; 608, or 1024 (MoE)")
    add("--max-rows", type=int, default=128)
    add("--rate", type=float, default=12.0, help="requests a second")
    add("--seconds", type=float, default=15.0, help="of arrivals")
    add("--repeats", type=int, default=1)
    add("--seed", type=int, default=1)
    add("--generator-cores", default="0-1")
    add("--reserved-cores", default="2-3")
    add("--other-cores", default="4-15")
    add("--scheduler", default="device", choices=("device", "host"))
    add("--scripted", action="store_true", help="without a model, on the CPU: to try the script")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    options.placement = options.placement or list(ALONE)
    for model in ["scripted"] if options.scripted else options.model or ["llama-3-8b"]:
        for form in options.prefill or FORMS:
            asyncio.run(serve(options, model, form))
            rows, text = table(options.output)
            (options.output / "workload.json").write_text(json.dumps(rows, indent=1) + "\n")
            (options.output / "workload.md").write_text(text)
            print(text, flush=True)


if __name__ == "__main__":
    main()
