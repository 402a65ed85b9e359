"""Metrics over worker processes: whoever is asked tells of all, also of those that are gone."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

from blink_server.backend import RequestTiming
from blink_server.finished_request import FinishedRequest
from blink_server.http import shared_metrics
from blink_server.http.exposition import expose
from blink_server.http.metrics import Metrics
from blink_server.http.shared_metrics import fold_worker

WORKER = """
import asyncio, sys
from pathlib import Path
sys.path.append(sys.argv[2])
from test_metrics import count
from blink_server.http.metrics import Metrics

async def main():
    metrics = Metrics(Path(sys.argv[1]))
    count(metrics, "worker")
    await metrics.start()
    print("counted", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    metrics.close()

asyncio.run(main())
"""


LONG, SHORT = 30.0, 0.05  # seconds


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> Callable[[float | None], None]:
    """Sets how long another worker's answer is waited for; at first, longer than any takes."""

    def wait(seconds: float | None) -> None:
        monkeypatch.setattr(shared_metrics, "_ANSWER_SECONDS", seconds)

    wait(LONG)
    return wait


def count(metrics: Metrics, request_id: str) -> None:
    """Two requests, of which one has ended."""
    metrics.submitted("m")
    metrics.submitted("m")
    metrics.first_token("m")
    metrics.observe_finished(
        FinishedRequest(
            model="m",
            version=1,
            operation="chat",
            outcome="stop",
            prompt_tokens=3,
            generated_tokens=4,
            received_ns=0,
            first_token_ns=10**9,
            finished_ns=2 * 10**9,
            timing=RequestTiming(1, 2, 3, 4),
            request_id=request_id,
        )
    )


@asynccontextmanager
async def worker(
    directory: Path, program: str = WORKER
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that has counted and answers; it leaves when its input ends."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(directory), str(Path(__file__).parent)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"counted\n"
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def started(directory: Path) -> AsyncIterator[Metrics]:
    metrics = Metrics(directory)
    await metrics.start()
    try:
        yield metrics
    finally:
        metrics.close()


async def value(metrics: Metrics, name: str) -> float:
    families = await metrics.families()
    return sum(s.value for family in families for s in family.samples if s.name == name)


def left_in(directory: Path) -> set[str]:
    return {path.stem for path in directory.iterdir()}


WAITING, TOKENS = "vllm:num_requests_waiting", "vllm:generation_tokens_total"


async def test_workers_are_summed(tmp_path: Path) -> None:
    async with started(tmp_path) as metrics, worker(tmp_path):
        count(metrics, "here")
        assert await value(metrics, WAITING) == 2
        assert await value(metrics, TOKENS) == 8
        assert await value(metrics, "nv_inference_request_success") == 2
        assert (await metrics.triton_totals())["nv_inference_request_success", "m", "1"] == 2


async def test_one_that_leaves_keeps_its_counts_and_holds_nothing(tmp_path: Path) -> None:
    async with started(tmp_path) as metrics, worker(tmp_path) as other:
        await other.communicate(b"")  # closes its input
        for _ in range(2):  # before and after the arbiter has seen it
            assert await value(metrics, WAITING) == 0
            assert await value(metrics, TOKENS) == 4
            fold_worker(tmp_path, other.pid)
        assert left_in(tmp_path) == {"lock", "past", str(os.getpid())}


async def test_what_a_killed_one_has_told_is_never_taken_back(tmp_path: Path) -> None:
    async with started(tmp_path) as metrics, worker(tmp_path) as told, worker(tmp_path) as silent:
        (tmp_path / f"{silent.pid}.sock").rename(tmp_path / "elsewhere")
        assert await value(metrics, TOKENS) == 4
        for process in (told, silent):
            process.send_signal(signal.SIGKILL)
            await process.wait()
            fold_worker(tmp_path, process.pid)
        assert await value(metrics, TOKENS) == 4


async def test_what_a_killed_one_has_answered_to_a_scrape_is_never_taken_back(
    tmp_path: Path,
) -> None:
    scraped = WORKER.replace("print(", "await metrics.families(); print(")
    async with started(tmp_path) as metrics, worker(tmp_path, scraped) as other:
        other.kill()
        await other.wait()
        (tmp_path / f"{other.pid}.new").write_text("[")  # killed while it wrote
        for _ in range(2):  # before and after the arbiter has seen it
            assert await value(metrics, TOKENS) == 4
            fold_worker(tmp_path, other.pid)
        assert left_in(tmp_path) == {"lock", "past", str(os.getpid())}


async def test_one_whose_arbiter_is_gone_too_leaves_no_files(tmp_path: Path) -> None:
    async with started(tmp_path) as metrics, worker(tmp_path) as other:
        assert await value(metrics, TOKENS) == 4
        other.kill()
        await other.wait()
        for _ in range(2):
            assert await value(metrics, TOKENS) == 4
            assert left_in(tmp_path) == {"lock", "past", str(os.getpid())}


async def test_a_full_disk_does_not_end_the_telling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with started(tmp_path) as metrics:
        count(metrics, "here")
        monkeypatch.setattr(Path, "write_bytes", full)
        assert await value(metrics, TOKENS) == 4


async def test_one_that_hangs_is_shown_as_it_was_and_waited_for_once(
    tmp_path: Path, patience: Callable[[float | None], None]
) -> None:
    async with started(tmp_path) as metrics, worker(tmp_path) as other:
        assert (await value(metrics, TOKENS), await value(metrics, WAITING)) == (4, 1)
        os.kill(other.pid, signal.SIGSTOP)
        patience(SHORT)
        assert await value(metrics, TOKENS) == 4
        patience(None)  # to wait were to wait forever
        async with asyncio.timeout(30):
            for _ in range(3):
                assert (await value(metrics, TOKENS), await value(metrics, WAITING)) == (4, 0)
        assert metrics._shared is not None
        [late] = metrics._shared._late.values()
        os.kill(other.pid, signal.SIGCONT)
        await late
        assert (await value(metrics, TOKENS), await value(metrics, WAITING)) == (4, 1)


async def test_one_that_hangs_and_is_killed_leaves_its_counts(
    tmp_path: Path, patience: Callable[[float | None], None]
) -> None:
    async with started(tmp_path) as metrics, worker(tmp_path) as other:
        assert await value(metrics, TOKENS) == 4
        os.kill(other.pid, signal.SIGSTOP)
        patience(SHORT)
        assert await value(metrics, TOKENS) == 4
        other.kill()
        await other.wait()
        assert metrics._shared is not None
        await asyncio.gather(*metrics._shared._late.values())
        assert await value(metrics, TOKENS) == 4
        assert left_in(tmp_path) == {"lock", "past", str(os.getpid())}


async def test_a_damaged_file_costs_its_own_counts_only(tmp_path: Path) -> None:
    (tmp_path / "1234567.json").write_text('[{"name": "vllm:gen')
    async with started(tmp_path) as metrics:
        count(metrics, "here")
        assert await value(metrics, TOKENS) == 4


async def test_the_newest_exemplar_of_a_bucket_is_shown(tmp_path: Path) -> None:
    async with started(tmp_path) as metrics, worker(tmp_path):
        count(metrics, "newest")
        text, _ = expose([*await metrics.families()], "application/openmetrics-text")
        exemplars = {
            sample.exemplar.labels["request_id"]
            for family in parse(text.decode())  # type: ignore[no-untyped-call]
            for sample in family.samples
            if sample.exemplar is not None
        }
        assert exemplars == {"newest"}


async def test_nobody_else_may_read_what_workers_tell(tmp_path: Path) -> None:
    async with started(tmp_path) as metrics:
        await metrics.families()
        assert (tmp_path / f"{os.getpid()}.sock").stat().st_mode & 0o077 == 0
    told = json.loads((tmp_path / f"{os.getpid()}.json").read_text())
    assert {"name", "help", "type", "samples"} == set(told[0])
