"""A process that the server started or took over, watched through its pidfd.

A pid can be reused, a pidfd cannot: waiting and signalling go through it, and a process found in
the records of a dead server is taken over only if its start time is the recorded one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from blink_server.errors import BlinkError

_GROUP_CHECK_SECONDS = 0.05
_LAST_LINES = 20
_LONGEST_LINE = 8192  # bytes; longer output without a newline is cut into lines of this length


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Which process, for certain: `start_ticks` is field 22 of /proc/PID/stat."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Raises ProcessLookupError when there is no such process."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            raise ProcessLookupError(f"no process {pid}") from None
        # The command's name, in parentheses, may itself hold spaces and parentheses.
        state, *numbers = stat[stat.rindex(b")") + 2 :].split()
        if state in (b"Z", b"X"):
            raise ProcessLookupError(f"process {pid} has ended")
        return cls(pid, int(numbers[18]))

    @property
    def alive(self) -> bool:
        """Whether this very process, not a later one of the same number, still runs."""
        try:
            return ProcessId.of(self.pid) == self
        except ProcessLookupError:
            return False


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended; `code` is None for one taken over, whose status only init sees."""

    code: int | None  # negative: minus the signal's number
    last_line: str = ""

    def __str__(self) -> str:
        if self.code is None:
            how = "ended"
        elif self.code < 0:
            how = f"signal {_signal_name(-self.code)}"
        else:
            how = f"exit code {self.code}"
        # These signals come from outside: what it wrote before has nothing to do with its end.
        killed = self.code in (-signal.SIGKILL, -signal.SIGTERM)
        return f"{how} ({self.last_line})" if self.last_line and not killed else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


class _OutputLines(asyncio.Protocol):
    """Splits what a process writes into lines, gives each to `sink`, keeps the last ones."""

    def __init__(self, sink: Callable[[str], None]) -> None:
        self._sink = sink
        self._rest = b""
        self.last: deque[str] = deque(maxlen=_LAST_LINES)
        self.closed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest[:_LONGEST_LINE])
            self._rest = self._rest[_LONGEST_LINE:]
        for line in lines:
            self._emit(line)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest:
            self._emit(self._rest)
        self.closed.set()

    def _emit(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self.last.append(text)
            self._sink(text)


class Process:
    """A running process; all calls on the event loop that created it."""

    def __init__(
        self,
        identity: ProcessId,
        pidfd: int,
        popen: subprocess.Popen[bytes] | None,
        output: _OutputLines | None,
    ) -> None:
        self.identity = identity
        self._pidfd = pidfd
        self._popen = popen
        self._output = output
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[Exit] = self._loop.create_future()
        self._loop.add_reader(pidfd, self._on_exit)

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        on_line: Callable[[str], None] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Process:
        """Start `argv` in a session of its own, so that a terminal's Ctrl-C does not reach it.

        With `on_line`, each line of its output (both streams) is given to that function; without,
        it writes where this process writes. Raises BlinkError when it cannot be started.
        """
        stream = None if on_line is None else subprocess.PIPE
        try:
            popen = subprocess.Popen(  # noqa: ASYNC220 (returns once exec has succeeded)
                argv,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=None if on_line is None else subprocess.STDOUT,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        except OSError as error:
            raise BlinkError(f"cannot start {argv[0]}: {error}") from None
        output = None
        if on_line is not None:
            output = await cls._follow_output(popen, on_line)
        start = _start_ticks_of_child(popen.pid)
        return cls(ProcessId(popen.pid, start), os.pidfd_open(popen.pid), popen, output)

    @staticmethod
    async def _follow_output(
        popen: subprocess.Popen[bytes], on_line: Callable[[str], None]
    ) -> _OutputLines:
        _, output = await asyncio.get_running_loop().connect_read_pipe(
            lambda: _OutputLines(on_line), popen.stdout
        )
        return output

    @classmethod
    def take_over(cls, identity: ProcessId) -> Process:
        """Watch a process that a dead server left running. Raises ProcessLookupError."""
        pidfd = os.pidfd_open(identity.pid)
        if not identity.alive:
            os.close(pidfd)
            raise ProcessLookupError(f"process {identity.pid} has ended")
        return cls(identity, pidfd, None, None)

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def running(self) -> bool:
        return not self._exit.done()

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = self._popen.wait() if self._popen is not None else None
        self._exit.set_result(Exit(code))

    async def wait(self) -> Exit:
        """Wait for the end, then for the last line of output (a second at most)."""
        ended = await asyncio.shield(self._exit)
        if self._output is None:
            return ended
        with contextlib.suppress(TimeoutError):  # a grandchild may keep the pipe open
            await asyncio.wait_for(self._output.closed.wait(), 1.0)
        return Exit(ended.code, self._output.last[-1] if self._output.last else "")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when the process has ended."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """SIGKILL to it and to what it has started, which share its process group."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def terminate(self, grace_seconds: float) -> Exit:
        """SIGTERM, and SIGKILL when it has not ended within `grace_seconds`; returns its exit."""
        self.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self.wait(), grace_seconds)
        self.kill()
        return await self.wait()

    def signal_group(self, number: int) -> bool:
        """Signal the process and what it has started; False once nothing of that is left."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    async def end_group(self, grace_seconds: float) -> None:
        """SIGTERM to what an ended process has left behind, SIGKILL after `grace_seconds`."""
        if not self.signal_group(signal.SIGTERM):
            return
        deadline = self._loop.time() + grace_seconds
        while self.signal_group(0):  # nobody tells when processes that are not ours end
            if self._loop.time() >= deadline:
                self.signal_group(signal.SIGKILL)
                return
            await asyncio.sleep(_GROUP_CHECK_SECONDS)


def _start_ticks_of_child(pid: int) -> int:
    try:
        return ProcessId.of(pid).start_ticks
    except ProcessLookupError:  # it has ended already and waits to be reaped
        return 0
