from __future__ import annotations

import os
import re
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from blink_server.repository.policy import VersionKey
from blink_server.repository.surroundings import Limits
from blink_server.repository.wanted import InvalidVersion
from blink_server.testing.manager_rig import Rig


@pytest.fixture
async def rig(short_path: Path) -> AsyncIterator[Rig]:
    rig = await Rig.start(short_path)
    yield rig
    await rig.close()


async def test_a_version_loads_serves_and_leaves_nothing_behind(rig: Rig) -> None:
    await rig.apply(rig.wanted())
    assert (await rig.catalog.entry("LOADING")).endpoint is None
    ready = await rig.catalog.entry("READY")
    assert (ready.backend, ready.aliases, ready.epoch) == ("fake", ("alias",), 1)
    assert ready.endpoint is not None
    assert ready.endpoint.address["socket"] == str(rig.runtime.path / "runner-1/requests.sock")
    await rig.manager.settled()
    assert rig.catalog.current is not None
    assert rig.catalog.current.server == "READY"
    runner = rig.runner()
    await rig.manager.close(1.0)
    assert not runner.alive
    assert rig.runtime.runner_directories() == []


async def test_a_killed_runner_is_reported_and_comes_back_with_the_next_epoch(rig: Rig) -> None:
    await rig.apply(rig.wanted())
    await rig.catalog.entry("READY")
    os.kill(rig.runner().pid, signal.SIGKILL)
    gone = await rig.catalog.entry("UNAVAILABLE")
    assert gone.reason == "runner exited: signal SIGKILL"
    assert gone.endpoint is None
    assert (await rig.catalog.entry("READY", epoch=2)).epoch == 2


async def test_a_load_that_fails_says_why_and_is_retried(rig: Rig) -> None:
    wanted = rig.wanted(fail_while="broken")
    broken = wanted.version.directory / "broken"
    broken.touch()
    await rig.apply(wanted)
    assert (await rig.catalog.entry("UNAVAILABLE")).reason == "broken is there"
    await rig.manager.settled()
    broken.unlink()
    await rig.catalog.entry("READY", epoch=2)


async def test_a_runner_that_exits_while_loading_is_quoted(rig: Rig) -> None:
    await rig.apply(rig.wanted(exit_code=7))
    reason = (await rig.catalog.entry("UNAVAILABLE")).reason
    assert reason == "runner exited while loading: exit code 7 (exiting with 7 as told)"


async def test_a_load_that_takes_too_long_is_ended(short_path: Path) -> None:
    rig = await Rig.start(short_path, Limits(load=0.3, first_retry=30.0, kill_grace=5.0))
    wanted = rig.wanted(load_gate="gate")
    os.mkfifo(wanted.version.directory / "gate")
    await rig.apply(wanted)
    reason = (await rig.catalog.entry("UNAVAILABLE")).reason
    assert reason.startswith("not loaded after 0.3 s")
    assert rig.runtime.runner_directories() == []
    await rig.close()


async def test_a_version_that_does_not_fit_is_refused_and_starts_nothing(short_path: Path) -> None:
    rig = await Rig.start(short_path, Limits(first_retry=30.0), memory=1 << 19)
    await rig.apply(rig.wanted())
    reason = (await rig.catalog.entry("UNAVAILABLE")).reason
    assert reason == "memory: needs 1.0 MiB, 0.5 MiB available"
    assert rig.runtime.runner_directories() == []
    await rig.close()


async def test_cores_are_shared_by_what_is_wanted_when_each_is_loaded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    first, second = rig.wanted("first"), rig.wanted("second")
    await rig.apply(first)
    await rig.manager.settled()
    assert rig.backend.threads == {"first:1": 12}
    await rig.want(first, second)
    await rig.manager.settled()
    assert rig.backend.threads == {"first:1": 12, "second:1": 6}
    os.kill(rig.runner().pid, signal.SIGKILL)
    await rig.catalog.entry("READY", key="first:1", epoch=2)
    assert rig.backend.threads == {"first:1": 6, "second:1": 6}


async def test_one_broken_version_does_not_keep_others_from_serving(rig: Rig) -> None:
    invalid = InvalidVersion(VersionKey("bad", 2), rig.path, "config.json: is missing")
    await rig.apply(rig.wanted("good"), rig.wanted("exits", exit_code=1), invalid=(invalid,))
    await rig.catalog.entry("READY", key="good:1")
    await rig.manager.settled()
    update = rig.catalog.current
    assert update is not None
    states = {e.model: e.state for e in update.models}
    assert states["bad"] == "UNAVAILABLE"
    assert states["good"] == "READY"
    assert update.server == "READY"


async def test_the_new_version_is_ready_before_the_old_one_goes(rig: Rig) -> None:
    old, new = rig.wanted(version=1), rig.wanted(version=2)
    await rig.apply(old)
    await rig.catalog.entry("READY")
    await rig.want(new)
    loading = await rig.catalog.entry("LOADING", key="echo:2")
    assert loading.epoch == 1
    await rig.catalog.entry("READY", key="echo:2")
    draining = await rig.catalog.entry("DRAINING", key="echo:1")
    assert draining.endpoint is None
    await rig.catalog.until(lambda u: [e.version for e in u.models] == [2])
    assert len(rig.runtime.runner_directories()) == 1


async def test_a_successor_takes_over_living_runners_without_a_word_of_trouble(
    short_path: Path,
) -> None:
    first = await Rig.start(short_path)
    wanted = first.wanted()
    await first.apply(wanted)
    before = await first.catalog.entry("READY")
    runner = first.runner()
    await first.crash()
    successor = await Rig.start(short_path)
    await successor.apply(wanted)
    update = await successor.catalog.until(lambda _: True)
    [after] = update.models
    assert replace(after, load_seconds=before.load_seconds) == before
    assert successor.runner() == runner
    assert runner.alive
    await successor.manager.close(1.0)
    assert not runner.alive
    # The runner was ended under the first manager's eyes too; its own end is then immediate.
    first.manager.kill()
    await first.manager.close(0.0)
    await successor.control.close()
    successor.runtime.close()


async def test_a_runner_that_the_successor_does_not_want_is_ended(short_path: Path) -> None:
    first = await Rig.start(short_path)
    await first.apply(first.wanted())
    await first.catalog.entry("READY")
    runner = first.runner()
    await first.crash()
    successor = await Rig.start(short_path)
    await successor.apply()
    await successor.catalog.until(lambda update: not update.models)
    assert not runner.alive
    assert successor.runtime.runner_directories() == []
    first.manager.kill()
    await first.manager.close(0.0)
    await successor.control.close()
    successor.runtime.close()


async def test_every_change_of_a_state_is_told_and_is_one_log_line(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await rig.apply(rig.wanted())
    await rig.catalog.entry("READY")
    await rig.want()
    await rig.catalog.until(lambda update: not update.models)
    told = [(each.previous, each.state, each.reason) for each in rig.changes]
    assert told == [
        ("UNAVAILABLE", "LOADING", ""),
        ("LOADING", "READY", ""),
        ("READY", "DRAINING", ""),
        ("DRAINING", "UNLOADING", ""),
        ("UNLOADING", "UNAVAILABLE", "unloaded"),
    ]
    lines = [record.message for record in caplog.records if "echo:1" in record.message]
    assert lines == [str(change) for change in rig.changes]
    assert re.match(r"echo:1 READY \| epoch=1 previous=LOADING seconds=\d+\.\d", lines[1])
