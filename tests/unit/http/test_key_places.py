"""A key's places are counted over processes, and come back with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from blink_server.http.key_places import KeyPlaces

KEY, OTHER = b"\x01" * 32, b"\x02" * 32
WORKER = """
import sys
from pathlib import Path
from blink_server.http.key_places import KeyPlaces
places = KeyPlaces(Path(sys.argv[1]), 3)
taken = [places.take(bytes([1]) * 32) for _ in range(2)]
print(taken, flush=True)
sys.stdin.read(1)
places.give(bytes([1]) * 32, taken[0])
print("given", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("shared", [False, True])
def test_a_key_has_so_many_places_and_no_more(tmp_path: Path, shared: bool) -> None:
    places = KeyPlaces(tmp_path / "keys" if shared else None, 2)
    assert [places.take(KEY) for _ in range(3)] == [0, 1, None]
    assert places.take(OTHER) == 0
    places.give(KEY, 0)
    assert [places.take(KEY) for _ in range(2)] == [0, None]


def test_places_are_those_of_all_workers(tmp_path: Path) -> None:
    places = KeyPlaces(tmp_path / "keys", 3)
    command = [sys.executable, "-c", WORKER, str(tmp_path / "keys")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"[0, 1]\n"
        assert [places.take(KEY) for _ in range(2)] == [2, None]
        worker.stdin.write(b"x")
        assert worker.stdout.readline() == b"given\n"
        assert [places.take(KEY) for _ in range(2)] == [0, None]
        worker.kill()
        worker.wait()
        # It could give nothing back.
        assert [places.take(KEY) for _ in range(2)] == [1, None]
