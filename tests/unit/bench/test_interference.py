from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from blink_server.bench.interference import Neighbours, parse_cores
from blink_server.errors import BlinkError

CORE = min(os.sched_getaffinity(0))

PARENT = f"""
import sys
from blink_server.bench.interference import Neighbours
with Neighbours("alternating", [{CORE}, {CORE}]) as neighbours:
    print(*neighbours.pids, flush=True)
    sys.stdin.read()
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_neighbours_work_on_their_cores_and_are_gone_afterwards() -> None:
    with Neighbours("bzip2", [CORE]) as neighbours:
        [pid] = neighbours.pids
        assert os.sched_getaffinity(pid) == {CORE}
        before = neighbours.cpu_seconds()
        while neighbours.cpu_seconds() <= before:
            assert alive(pid)
    assert not alive(pid)


def test_neighbours_are_gone_after_an_error() -> None:
    pids: list[int] = []

    def interrupted() -> None:
        with Neighbours("memory", [CORE]) as neighbours:
            pids.extend(neighbours.pids)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(pids) == 1
    assert not alive(pids[0])


def test_the_first_is_ended_where_the_second_cannot_work(capfd: pytest.CaptureFixture[str]) -> None:
    neighbours = Neighbours("memory", [CORE, 4000])
    with pytest.raises(BlinkError, match="a neighbour ended: exit code 1"):
        neighbours.__enter__()
    assert neighbours.pids == []
    assert "OSError" in capfd.readouterr().err


def test_neighbours_die_with_who_started_them() -> None:
    command = [sys.executable, "-c", PARENT]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        watched = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
        assert parent.wait() == -signal.SIGKILL
    assert len(watched) == 2
    for pidfd in watched:
        ended, _, _ = select.select([pidfd], [], [], 30)
        os.close(pidfd)
        assert ended


def test_cores_are_read_as_taskset_does() -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert parse_cores(f"{cores[0]}-{cores[0]},{cores[0]}") == [cores[0]]
    assert parse_cores(",".join(map(str, reversed(cores)))) == cores


@pytest.mark.parametrize("text", ["", "a", "1-", "3-1", "0-4000", "-1"])
def test_what_is_no_list_of_usable_cores_is_refused(text: str) -> None:
    with pytest.raises(BlinkError, match="cores are"):
        parse_cores(text)
