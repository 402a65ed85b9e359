from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from blink_server.repository.watcher import Watcher, _Handler
from blink_server.testing.tiny_repository import write_tiny_version

NEVER = 600.0


@pytest.fixture
async def watcher(tmp_path: Path) -> AsyncIterator[Watcher]:
    write_tiny_version(tmp_path)
    watcher = Watcher([tmp_path], longest_wait=NEVER)
    await asyncio.to_thread(watcher.start)
    yield watcher
    await asyncio.to_thread(watcher.close)


async def looked(watcher: Watcher) -> None:
    await asyncio.wait_for(watcher.wait(), 30)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: (d / "config.json").write_text("{}"),
        lambda d: (d / "config.json").unlink(),
        lambda d: (d / "new").write_text(""),
        lambda d: (d / "config.json").chmod(0o600),
        lambda d: os.utime(d / "config.json", (1, 1)),
        lambda d: d.rename(d.with_name("2")),
        lambda d: (d.parent / "model.json").write_text("{}"),
        lambda d: (d.parent / "2").mkdir(),
        lambda d: d.parent.rename(d.parent.with_name("other")),
        lambda d: (d.parent / "3").symlink_to(d),
    ],
)
async def test_a_change_is_a_reason_to_look(
    watcher: Watcher, tmp_path: Path, change: Callable[[Path], Any]
) -> None:
    change(tmp_path / "tiny" / "1")
    await looked(watcher)


async def test_what_is_moved_in_is_watched_too(watcher: Watcher, tmp_path: Path) -> None:
    aside = tmp_path.with_name(f"{tmp_path.name}-aside")
    write_tiny_version(aside)
    (aside / "tiny").rename(tmp_path / "moved")
    await looked(watcher)
    (tmp_path / "moved" / "1" / "config.json").write_text("{}")
    await looked(watcher)


def touch(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")


async def test_reading_and_noise_are_no_reasons(
    watcher: Watcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heeded: list[str] = []
    is_noise = _Handler._is_noise

    def note(handler: _Handler, path: str) -> bool:
        noise = is_noise(handler, path)
        if not noise:
            heeded.append(Path(path).name)
        return noise

    monkeypatch.setattr(_Handler, "_is_noise", note)
    directory = tmp_path / "tiny" / "1"
    (directory / "config.json").read_bytes()
    touch(directory / ".config.json.swp")
    touch(directory / "config.json~")
    touch(directory / "__pycache__" / "x.pyc")
    touch(tmp_path / ".git" / "index")
    touch(directory / "last")  # events come in their order
    await looked(watcher)
    assert set(heeded) == {"last"}


async def test_a_look_is_due_from_time_to_time_without_events(tmp_path: Path) -> None:
    quiet = Watcher([tmp_path], longest_wait=0.01)
    await asyncio.to_thread(quiet.start)
    await looked(quiet)
    await asyncio.to_thread(quiet.close)
    await asyncio.wait_for(Watcher([tmp_path], longest_wait=NEVER).wait(0.01), 30)


async def test_polling_asks_the_kernel_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("no events are wanted")

    polling = Watcher([tmp_path], polling_seconds=0.01)
    monkeypatch.setattr(polling._observer, "schedule", refuse)
    polling.start()
    await looked(polling)
    polling.close()


async def test_without_watches_left_it_looks_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> NoReturn:
        raise OSError(28, "inotify watch limit reached")

    poor = Watcher([tmp_path], longest_wait=0.01)
    monkeypatch.setattr(poor._observer, "start", full)
    await asyncio.to_thread(poor.start)
    assert "inotify watch limit reached" in caplog.text
    await looked(poor)
    await asyncio.to_thread(poor.close)


async def test_folders_within_new_folders_are_no_reason_to_warn(tmp_path: Path) -> None:
    folders = [tmp_path / f"model{number}" / "1" / "files" for number in range(300)]
    with warnings.catch_warnings(record=True) as told:
        warnings.resetwarnings()
        watcher = Watcher([tmp_path], longest_wait=NEVER)
        await asyncio.to_thread(watcher.start)
        making = await asyncio.create_subprocess_exec("mkdir", "-p", *folders)
        assert await making.wait() == 0
        await looked(watcher)
        await asyncio.to_thread(watcher.close)
    assert not told
