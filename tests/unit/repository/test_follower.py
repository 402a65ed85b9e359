"""What is seen although the kernel has dropped the events that would have told of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import struct
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from watchdog.observers import inotify_c

from blink_server.plugins import Plugins, load_plugins
from blink_server.repository.follower import RepositoryFollower
from blink_server.repository.policy import Generation
from blink_server.repository.reader import RepositoryReader
from blink_server.repository.settling import Settling
from blink_server.repository.wanted import WantedSet
from blink_server.repository.watcher import Watcher
from blink_server.testing.tiny_repository import CheckOnlyPlugin, write_tiny_version

QUEUED = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name
OVERFLOW = 0x4000


class Rig:
    """A follower of one repository; `seen` tells which models each look has found."""

    def __init__(self, repository: Path) -> None:
        self.looks: asyncio.Queue[WantedSet] = asyncio.Queue()
        plugins: Plugins = load_plugins([], extra={"tiny": CheckOnlyPlugin()})
        self.reader = RepositoryReader([repository], plugins, Settling(0.0))
        self.follower = RepositoryFollower(self.reader, self.looks.put)

    async def seen(self, *models: str) -> WantedSet:
        """Wait for a look that finds exactly these."""
        async with asyncio.timeout(60):
            while True:
                wanted = await self.looks.get()
                if {each.key.model for each in wanted.valid} == set(models):
                    return wanted


@pytest.fixture
async def watching() -> AsyncIterator[contextlib.AsyncExitStack]:
    async with contextlib.AsyncExitStack() as stack:
        yield stack


async def follow(rig: Rig, watcher: Watcher, stack: contextlib.AsyncExitStack) -> None:
    await asyncio.to_thread(watcher.start)
    stack.push_async_callback(asyncio.to_thread, watcher.close)
    task = asyncio.create_task(rig.follower.run(watcher))
    stack.callback(task.cancel)


class GatedReads:
    """The module `os`, whose `read` waits for a gate, and notes an overflow that it has read."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.overflowed = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def read(self, descriptor: int, size: int) -> bytes:
        self.open.wait(60)
        data = os.read(descriptor, size)
        start = 0
        while start < len(data):
            _, mask, _, length = EVENT.unpack_from(data, start)
            if mask & OVERFLOW:
                self.overflowed.set()
            start += EVENT.size + length
        return data


@pytest.mark.slow
@pytest.mark.skipif(QUEUED > 1 << 20, reason="the kernel's queue is too long to fill")
async def test_what_the_kernel_s_queue_had_no_room_for_is_seen_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watching: contextlib.AsyncExitStack
) -> None:
    reads = GatedReads()
    watching.callback(reads.open.set)
    monkeypatch.setattr(inotify_c, "os", reads)
    write_tiny_version(tmp_path)
    noise = [tmp_path / ".a", tmp_path / ".b"]
    for file in noise:
        file.touch()
    rig = Rig(tmp_path)
    await follow(rig, Watcher([tmp_path], longest_wait=0.2), watching)
    await rig.seen("tiny")
    reads.open.clear()
    for count in range(QUEUED + 8):  # two files: what repeats itself is merged
        noise[count % 2].chmod(0o600 + count // 2 % 2)
    write_tiny_version(tmp_path, "lost")
    reads.open.set()
    assert await asyncio.to_thread(reads.overflowed.wait, 60)
    await rig.seen("lost", "tiny")
    shutil.rmtree(tmp_path / "tiny")
    await rig.seen("lost")


async def test_what_could_not_be_loaded_selects_anew_without_a_look_at_the_disk(
    tmp_path: Path,
) -> None:
    write_tiny_version(tmp_path, version=1)
    write_tiny_version(tmp_path, version=2)
    rig = Rig(tmp_path)
    wanted = await rig.follower.first()
    assert [each.key.version for each in wanted.valid] == [2]
    write_tiny_version(tmp_path, version=3)
    await rig.follower.reselect([wanted.valid[0].generation])
    assert [each.key.version for each in (await rig.looks.get()).valid] == [1, 2]
    await rig.follower.reselect([])
    assert [each.key.version for each in (await rig.looks.get()).valid] == [2]
    other_files = Generation("tiny", 2, "of before")
    await rig.follower.reselect([other_files])
    assert [each.key.version for each in (await rig.looks.get()).valid] == [2]
    await rig.follower.look()
    assert [each.key.version for each in (await rig.looks.get()).valid] == [3]


async def test_a_version_that_is_not_valid_has_the_next_lower_one_stand_in(tmp_path: Path) -> None:
    write_tiny_version(tmp_path, version=1)
    write_tiny_version(tmp_path, version=2)
    (write_tiny_version(tmp_path, version=3) / "tokenizer.json").unlink()
    wanted = await Rig(tmp_path).follower.first()
    assert [each.key.version for each in wanted.valid] == [2]
    assert [each.key.version for each in wanted.invalid] == [3]
