"""The load generator as it is used: against a whole server, over the scripted engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from blink_persistent.testing.scripted_version import write_scripted_version
from blink_server.process import Process
from blink_server.testing.server_process import ServerProcess, processes

pytestmark = pytest.mark.slow

CORE = min(os.sched_getaffinity(0))
SHORT = (
    *("--input-tokens=uniform:40:0.3", "--output-tokens=uniform:12:0.3", "--warm-up-secs=0.2"),
    *("--duration-secs=2", "--cool-down-secs=0.2"),
)

Start = Callable[..., Awaitable[ServerProcess]]


def marked(directory: Path) -> dict[str, str]:
    return {**os.environ, "BENCH_TEST": str(directory)}


async def bench(directory: Path, *arguments: str) -> tuple[int | None, str]:
    """Its exit code and output; all its processes have `directory` in their environment."""
    lines: list[str] = []
    command = [sys.executable, "-m", "blink_server", "bench", *arguments]
    process = await Process.start(command, env=marked(directory), on_line=lines.append)
    ended = await asyncio.wait_for(process.wait(), 120)
    return ended.code, "\n".join(lines)


@pytest.fixture
async def url(start: Start, repository: Path) -> str:
    write_scripted_version(repository, step_microseconds=1000)
    return await (await start("--workers=1")).ready()


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
async def test_a_sweep(url: str, endpoint: str, tmp_path: Path) -> None:
    code, said = await bench(
        tmp_path,
        *("serve", f"--url={url}", f"--endpoint={endpoint}", "--rate=3,6", *SHORT),
        *("--slo=ttft:60000", f"--output={tmp_path}"),
    )
    assert code == 0, said
    assert "| 6/s | alone |" in said
    document = json.loads((tmp_path / "results.json").read_text())
    for run in document["runs"]:
        assert run["errors"] == {}
        assert run["wrong_lengths"] == 0  # every prompt and answer has the tokens asked for
        assert run["succeeded"] == run["requests"] > 0
        assert run["goodput"] == pytest.approx(run["succeeded"] / run["seconds"])
    assert (tmp_path / "latencies.png").stat().st_size > 1000
    assert (tmp_path / "sweep.png").stat().st_size > 1000


async def test_a_closed_loop_of_token_ids(url: str, tmp_path: Path) -> None:
    code, said = await bench(
        tmp_path,
        *("serve", f"--url={url}", "--concurrency=2", "--requests=8", "--prompt-ids=300"),
        *(*SHORT, "--warm-up-secs=0", "--cool-down-secs=0", f"--output={tmp_path}", "--no-plots"),
    )
    assert code == 0, said
    [run] = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert run["requests"] == run["succeeded"] == 8
    assert run["wrong_lengths"] == 0


async def test_a_model_that_is_not_there_is_told_at_once(url: str, tmp_path: Path) -> None:
    code, said = await bench(
        tmp_path,
        *("serve", f"--url={url}", "--model=other", "--rate=3", "--prompt-ids=9", *SHORT),
        *(f"--output={tmp_path / 'out'}",),
    )
    assert code == 1
    assert "http_404" in said
    assert not (tmp_path / "out").exists()


async def test_interference_leaves_no_process(url: str, tmp_path: Path) -> None:
    code, said = await bench(
        tmp_path,
        *("interfere", f"--url={url}", f"--neighbour-cores={CORE}", "--neighbours=bzip2"),
        *("--rate=4", *SHORT, f"--output={tmp_path}", "--no-plots", "--repeats=2"),
    )
    assert code == 0, said
    assert "beside / alone" in said
    document = json.loads((tmp_path / "results.json").read_text())
    order = [(run["round"], run["condition"]) for run in document["runs"]]
    assert order == [(1, "alone"), (1, "beside"), (2, "beside"), (2, "alone")]
    assert [run["neighbour_cpu"] is None for run in document["runs"]] == [True, False, False, True]
    assert processes(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_what_is_stopped_takes_its_neighbours_along(
    url: str, tmp_path: Path, number: signal.Signals
) -> None:
    command = [
        *(sys.executable, "-m", "blink_server", "bench", "interfere", f"--url={url}"),
        *(f"--neighbour-cores={CORE}", "--neighbours=bzip2", "--rate=5", "--no-plots"),
        *(*SHORT, "--duration-secs=1", f"--output={tmp_path}", "--repeats=1000"),
    ]
    stopped = await Process.start(command, env=marked(tmp_path), on_line=lambda _: None)
    children = Path(f"/proc/{stopped.pid}/task/{stopped.pid}/children")
    async with asyncio.timeout(60):
        # Nobody tells when another's children start, or an orphan ends.
        while not children.read_text():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.05)
    stopped.signal(number)
    await asyncio.wait_for(stopped.wait(), 60)
    async with asyncio.timeout(30):
        while processes(tmp_path):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
