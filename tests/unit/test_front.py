from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from blink_server.errors import BlinkError
from blink_server.front import Front
from blink_server.front_options import FrontOptions
from blink_server.process import ProcessId
from blink_server.runtime_dir import RuntimeDirectory, open_runtime_directory, write_record

OPTIONS = FrontOptions(port=0)


@pytest.fixture
def runtime(short_path: Path) -> Iterator[RuntimeDirectory]:
    runtime = open_runtime_directory(short_path / "run")
    yield runtime
    runtime.close()


def leave_front(runtime: RuntimeDirectory, port: int, options: FrontOptions = OPTIONS) -> None:
    own = ProcessId.of(os.getpid())
    write_record(runtime.http_record, own, listening=port, **options.facts())


def test_without_a_predecessor_a_port_is_bound(runtime: RuntimeDirectory) -> None:
    front = Front(OPTIONS, runtime)
    front.claim()
    host, port = front.address
    assert host == "127.0.0.1"
    assert port > 0
    front.close()


async def test_a_predecessors_front_is_taken_over_with_its_port(runtime: RuntimeDirectory) -> None:
    leave_front(runtime, 4321)
    front = Front(OPTIONS, runtime)
    front.claim()
    assert front.address == ("127.0.0.1", 4321)


@pytest.mark.parametrize("insecure", [True, False])
async def test_what_only_allows_a_start_need_not_be_repeated(
    runtime: RuntimeDirectory, insecure: bool
) -> None:
    leave_front(runtime, 4321, replace(OPTIONS, insecure=insecure))
    front = Front(replace(OPTIONS, insecure=not insecure), runtime)
    front.claim()
    assert front.address == ("127.0.0.1", 4321)


@pytest.mark.parametrize(
    "other", [replace(OPTIONS, workers=2), replace(OPTIONS, port=81), replace(OPTIONS, host="::1")]
)
def test_a_predecessors_front_with_other_options_is_refused(
    runtime: RuntimeDirectory, other: FrontOptions
) -> None:
    leave_front(runtime, 4321)
    with pytest.raises(BlinkError, match=f"process {os.getpid()} still serves port 4321"):
        Front(other, runtime).claim()
