from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from blink_server.errors import BlinkError
from blink_server.process import Process, ProcessId


async def start(code: str, lines: list[str] | None = None) -> Process:
    sink = (lambda _: None) if lines is None else lines.append
    return await Process.start([sys.executable, "-c", code], env=os.environ, on_line=sink)


async def test_exit_code_and_last_line_are_the_reason() -> None:
    lines: list[str] = []
    process = await start(
        "import sys; print('first', flush=True); print('the cause', file=sys.stderr); sys.exit(3)",
        lines,
    )
    ended = await process.wait()
    assert str(ended) == "exit code 3 (the cause)"
    assert lines == ["first", "the cause"]
    assert not process.running
    with pytest.raises(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)  # noqa: ASYNC222 (it must be reaped already)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGKILL, "signal SIGKILL"),
        (signal.SIGTERM, "signal SIGTERM"),
        (signal.SIGABRT, "signal SIGABRT (the last words)"),
    ],
)
async def test_a_signal_is_named_with_the_last_line_if_it_is_its_own_doing(
    number: signal.Signals, reason: str
) -> None:
    process = await start(
        f"import os; os.write(1, b'the last words'); os.kill(os.getpid(), {number})"
    )
    assert str(await process.wait()) == reason


async def test_output_without_newlines_is_cut_not_hoarded() -> None:
    lines: list[str] = []
    process = await start("print('x' * 20000, end='')", lines)
    await process.wait()
    assert "".join(lines) == "x" * 20000
    assert max(map(len, lines)) == 8192


async def test_terminate_kills_what_ignores_sigterm() -> None:
    lines: asyncio.Queue[str] = asyncio.Queue()
    process = await Process.start(
        [
            sys.executable,
            "-c",
            "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "print('ready', flush=True); signal.pause()\nwhile True: signal.pause()",
        ],
        env=os.environ,
        on_line=lines.put_nowait,
    )
    await lines.get()
    ended = await process.terminate(grace_seconds=0.05)
    assert ended.code == -signal.SIGKILL


async def test_kill_takes_its_children_too() -> None:
    lines: asyncio.Queue[str] = asyncio.Queue()
    code = (
        "import subprocess, sys, signal\n"
        "c = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print(c.pid, flush=True); signal.pause()"
    )
    process = await Process.start(
        [sys.executable, "-c", code], env=os.environ, on_line=lines.put_nowait
    )
    child = Process.take_over(ProcessId.of(int(await lines.get())))
    process.kill()
    await process.wait()
    assert (await asyncio.wait_for(child.wait(), 10)).code is None


@pytest.mark.parametrize("deaf", [False, True])
async def test_what_a_killed_process_leaves_behind_is_ended(deaf: bool) -> None:
    lines: asyncio.Queue[str] = asyncio.Queue()
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if deaf else ""
    orphan = f"import signal; {ignore} print('here', flush=True); signal.pause()"
    code = (
        "import subprocess, sys, signal\n"
        f"c = subprocess.Popen([sys.executable, '-c', {orphan!r}])\n"
        "print(c.pid, flush=True); signal.pause()"
    )
    process = await Process.start(
        [sys.executable, "-c", code], env=os.environ, on_line=lines.put_nowait
    )
    said = {await lines.get(), await lines.get()}  # the pid, and that the child can be asked
    child = Process.take_over(ProcessId.of(int((said - {"here"}).pop())))
    process.signal(signal.SIGKILL)
    assert process.signal_group(0)
    await process.end_group(grace_seconds=0.2 if deaf else 60)
    assert (await asyncio.wait_for(child.wait(), 10)).code is None
    await process.wait()


async def test_a_missing_program_is_an_error_that_names_it() -> None:
    with pytest.raises(BlinkError, match="cannot start no-such-program"):
        await Process.start(["no-such-program"], env={}, on_line=print)


async def test_only_the_recorded_process_is_taken_over() -> None:
    own = ProcessId.of(os.getpid())
    assert own.alive
    later = ProcessId(own.pid, own.start_ticks + 1)
    assert not later.alive
    with pytest.raises(ProcessLookupError):
        Process.take_over(later)


async def test_a_session_of_its_own_keeps_terminal_signals_away() -> None:
    lines: list[str] = []
    process = await start("import os; print(os.getsid(0) == os.getpid())", lines)
    await process.wait()
    assert lines == ["True"]
