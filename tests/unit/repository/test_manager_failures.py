"""What the manager does about generations that cannot be loaded."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from blink_server.errors import Problem
from blink_server.messages import CatalogUpdate
from blink_server.repository.admin import model_rows
from blink_server.repository.policy import VersionKey
from blink_server.repository.wanted import InvalidVersion, WantedSet
from blink_server.testing.manager_rig import FAST, MIB, Rig

PATIENT = replace(FAST, first_retry=600.0, longest_retry=600.0)


@pytest.fixture
async def rig(short_path: Path) -> AsyncIterator[Rig]:
    rig = await Rig.start(short_path)
    yield rig
    await rig.close()


def states(update: CatalogUpdate) -> dict[int, str]:
    return {entry.version: entry.state for entry in update.models}


def reason_of(rig: Rig, version: int = 1) -> str:
    rows = {row.version: row for row in model_rows(WantedSet(), rig.manager.supervisors)}
    return rows[version].reason


async def test_what_follows_from_a_failed_load_belongs_to_its_outcome(rig: Rig) -> None:
    """A server is not started before the version that stands in is READY."""
    rig.spares = [rig.wanted(version=1)]
    await rig.apply(rig.wanted(version=2, exit_code=3))
    await rig.manager.settled()
    update = rig.catalog.current
    assert update is not None
    assert states(update)[1] == "READY"
    assert update.server == "READY"


async def test_the_stand_in_goes_when_the_newest_is_mended(rig: Rig) -> None:
    rig.spares = [rig.wanted(version=1)]
    broken = rig.wanted(version=2, fail_while="broken")
    (broken.version.directory / "broken").touch()
    await rig.apply(broken)
    await rig.catalog.entry("READY", key="echo:1")
    (broken.version.directory / "broken").unlink()
    await rig.catalog.entry("READY", key="echo:2")
    await rig.catalog.until(lambda update: states(update) == {2: "READY"})


async def test_what_made_way_for_a_successor_that_fails_comes_back_and_stays(
    short_path: Path,
) -> None:
    rig = await Rig.start(short_path, replace(FAST, first_retry=0.05), memory=MIB)
    old = rig.wanted(version=1)
    await rig.apply(old)
    await rig.catalog.entry("READY")
    rig.spares = [replace(old, unload_first=True)]
    await rig.want(replace(rig.wanted(version=2, exit_code=3), unload_first=True))
    refused = await rig.catalog.entry("UNAVAILABLE", key="echo:2")
    assert refused.awaited
    # Requests wait on, for what comes back.
    update = await rig.catalog.until(
        lambda update: any("exit code 3" in entry.reason for entry in update.models)
    )
    [failed] = update.models
    assert failed.awaited
    again = await rig.catalog.until(lambda update: states(update).get(1) == "READY")
    assert not any(entry.awaited for entry in again.models)
    # It is tried again and again, is refused for want of memory, and says why it really failed.
    for epoch in range(failed.epoch + 1, failed.epoch + 4):
        failed = await rig.catalog.entry("UNAVAILABLE", key="echo:2", epoch=epoch)
        assert "exit code 3" in failed.reason
        assert states(rig.catalog.current)[1] == "READY"  # type: ignore[arg-type]
    await rig.close()


async def reaches(rig: Rig, reason: str) -> None:
    async with asyncio.timeout(30):
        while reason_of(rig) != reason:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)


async def test_a_load_says_how_far_it_is(short_path: Path) -> None:
    rig = await Rig.start(short_path)
    wanted = rig.wanted(load_gate="gate")
    os.mkfifo(wanted.version.directory / "gate")
    await rig.apply(wanted)
    await reaches(rig, "weights 50%")
    await asyncio.to_thread((wanted.version.directory / "gate").write_bytes, b"")
    await rig.catalog.entry("READY")
    assert reason_of(rig) == ""
    await rig.close()


async def test_the_reason_stays_in_sight_until_a_load_succeeds(short_path: Path) -> None:
    rig = await Rig.start(short_path, PATIENT)
    wanted = rig.wanted(fail_while="broken", load_gate="gate")
    directory = wanted.version.directory
    os.mkfifo(directory / "gate")
    (directory / "broken").touch()
    await rig.apply(wanted)
    await asyncio.to_thread((directory / "gate").write_bytes, b"")
    await rig.catalog.entry("UNAVAILABLE")
    [supervisor] = rig.manager.supervisors
    async with asyncio.timeout(30):
        while not supervisor.attempts.retry_at:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
    assert reason_of(rig).startswith("broken is there; next try at 2")
    (directory / "broken").unlink()
    supervisor.retry()
    loading = await rig.catalog.entry("LOADING", epoch=2)
    assert loading.reason == "broken is there"
    assert reason_of(rig).endswith("tried again after: broken is there")
    await reaches(rig, "weights 50%; tried again after: broken is there")
    await asyncio.to_thread((directory / "gate").write_bytes, b"")
    ready = await rig.catalog.entry("READY", epoch=2)
    assert (ready.reason, reason_of(rig)) == ("", "")
    await rig.close()


async def test_a_crash_is_the_reason_while_the_runner_is_started_again(short_path: Path) -> None:
    rig = await Rig.start(short_path)
    await rig.apply(rig.wanted())
    await rig.catalog.entry("READY")
    os.kill(rig.runner().pid, signal.SIGKILL)
    assert (await rig.catalog.entry("LOADING", epoch=2)).reason == "runner exited: signal SIGKILL"
    await rig.close()


async def test_a_model_of_which_nothing_can_be_told_says_why(rig: Rig) -> None:
    await rig.apply()
    await rig.want(held={"twice": "two models have the name 'twice'"})
    update = await rig.catalog.until(lambda update: bool(update.models))
    [entry] = update.models
    assert (entry.model, entry.version, entry.state) == ("twice", 0, "UNAVAILABLE")
    assert entry.reason == "two models have the name 'twice'"
    invalid = InvalidVersion(VersionKey("twice", 2), rig.path, "config.json: is missing")
    await rig.want(invalid=[invalid], held={"twice": "unreadable"})
    update = await rig.catalog.until(lambda update: bool(update.models[0].version))
    assert [entry.version for entry in update.models] == [2]


def test_a_model_that_has_no_version_is_named_whatever_is_wrong_with_it(tmp_path: Path) -> None:
    (tmp_path / "odd" / "model.json").mkdir(parents=True)
    problems = [
        Problem(tmp_path / "odd" / "model.json", "", None, "must be a regular file"),
        Problem(tmp_path / "empty", "", None, "has no version"),
    ]
    rows = model_rows(WantedSet(problems=problems), [])
    assert [(row.model, row.version) for row in rows] == [("empty", 0), ("odd", 0)]
