"""The ways in which people put models into a repository, by their own tools."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from blink_server.testing.eventually import eventually
from blink_server.testing.fake_repository import write_fake_version
from blink_server.testing.server_process import ServerProcess

Start = Callable[..., Awaitable[ServerProcess]]
SETTLE_SECONDS = 0.5
SETTLE = f"--settle-secs={SETTLE_SECONDS}"

COPY_SLOWLY = """
import pathlib, sys, time
source, target = map(pathlib.Path, sys.argv[1:])
target.mkdir(parents=True)
for file in sorted(source.iterdir()):
    with (target / file.name).open("wb", buffering=0) as out:
        data = file.read_bytes()
        # The last bytes one at a time; every file is cut off for a while.
        out.write(data[:-8])
        for byte in data[-8:]:
            out.write(bytes([byte]))
            time.sleep(0.02)
"""

# What vim and emacs do: a probe file, a swap file, the text beside the old one, a rename.
EDIT = """
import pathlib, sys
file, old, new = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
directory = file.parent
(directory / ".config.json.swp").write_text("b0VIM")
(directory / "4913").write_text("")
(directory / "4913").unlink()
file.rename(directory / "config.json~")
(directory / "#config.json#").write_text("emacs")
file.write_text((directory / "config.json~").read_text().replace(old, new))
(directory / "config.json~").unlink()
(directory / "#config.json#").unlink()
(directory / ".config.json.swp").unlink()
"""

# rsync's way: hidden temporary names, the source's times, then renames.
LIKE_RSYNC = """
import os, pathlib, sys
source, target = map(pathlib.Path, sys.argv[1:])
target.mkdir(parents=True, exist_ok=True)
for file in sorted(source.iterdir()):
    part = target / f".{file.name}.Xa3b2C"
    part.write_bytes(file.read_bytes())
    status = file.stat()
    os.utime(part, ns=(status.st_atime_ns, status.st_mtime_ns))
    part.rename(target / file.name)
"""


async def run(*command: str | Path) -> None:
    process = await asyncio.create_subprocess_exec(*map(str, command))
    assert await process.wait() == 0


async def answer(url: str, model: str = "echo") -> str:
    body = {"model": model, "prompt": "?", "max_tokens": 1}
    async with httpx.AsyncClient(timeout=60) as client:
        reply = await client.post(f"{url}/v1/completions", json=body)
    return str(reply.json()["choices"][0]["text"]) if reply.status_code == 200 else reply.text


def starts(server: ServerProcess, what: str = "echo:1 LOADING") -> int:
    return sum(what in line for line in server.lines)


def longest_pause(begun: float, copied: Path) -> float:
    """Seconds between two changes of a directory or its files since a copy began, at most."""
    changes = sorted(path.stat().st_ctime for path in (copied, *copied.iterdir()))
    return max(later - earlier for earlier, later in itertools.pairwise([begun, *changes]))


@pytest.mark.parametrize(
    "way",
    [
        (sys.executable, "-c", COPY_SLOWLY),
        (sys.executable, "-c", LIKE_RSYNC),
        ("cp", "-r"),
        ("cp", "-a"),
        ("mv",),
        pytest.param(
            ("rsync", "-a", "--mkpath"),
            marks=pytest.mark.skipif(not shutil.which("rsync"), reason="rsync is not installed"),
        ),
    ],
    ids=["byte-by-byte", "like-rsync", "cp-r", "cp-a", "mv", "rsync"],
)
async def test_a_version_is_loaded_once_and_only_when_it_is_complete(
    start: Start, repository: Path, short_path: Path, way: tuple[str, ...]
) -> None:
    server = await start(SETTLE)
    url = await server.ready()
    for model in map("copy{}".format, range(100)):
        aside = write_fake_version(short_path / "aside", model, answer="a")
        target = repository / model / "1"
        target.parent.mkdir()
        begun = time.time()
        await run(*way, f"{aside}/" if way[0] == "rsync" else aside, target)
        await server.line(f"{model}:1 READY")
        await eventually(lambda: answer(url, model), lambda text: text == "a")  # noqa: B023
        # A copy that a busy machine has held up for as long as that is like one that has ended.
        if longest_pause(begun, target) < SETTLE_SECONDS:
            break
    assert starts(server, f"{model}:1 LOADING") == 1
    assert not [line for line in server.lines if f"{model}:1 cannot" in line]


async def test_a_link_is_swapped_from_one_release_to_the_next(
    start: Start, repository: Path, short_path: Path
) -> None:
    for release in ("one", "two"):
        write_fake_version(short_path / release, answer=release[0])
    (repository / "echo").mkdir()
    link = repository / "echo" / "1"
    await run("ln", "-s", short_path / "one" / "echo" / "1", link)
    server = await start(SETTLE)
    url = await server.ready()
    assert await answer(url) == "o"
    await run("ln", "-s", short_path / "two" / "echo" / "1", f"{link}.new")
    await run("mv", "-T", f"{link}.new", link)
    await server.line("echo:1 UNAVAILABLE: unloaded")
    assert await answer(url) == "t"
    assert starts(server) == 2


async def test_an_editor_changes_what_is_loaded_and_leaves_nothing_that_counts(
    start: Start, repository: Path
) -> None:
    directory = write_fake_version(repository)
    server = await start(SETTLE)
    await server.ready()
    config = directory / "config.json"
    await run(sys.executable, "-c", EDIT, config, '"context_length": 512', '"context_length": 256')
    await server.line("echo:1 UNAVAILABLE: unloaded")
    assert starts(server) == 2
    async with httpx.AsyncClient(timeout=60) as client:
        [card] = (await client.get(f"{await server.ready()}/v1/models")).json()["data"]
    assert card["max_model_len"] == 256


async def test_noise_loads_nothing(start: Start, repository: Path) -> None:
    directory = write_fake_version(repository)
    server = await start(SETTLE)
    await server.ready()
    await run("mkdir", "-p", repository / ".git" / "1", repository / "__pycache__" / "1")
    await run("cp", directory / "config.json", directory / ".config.json.swp")
    await run("touch", repository / "_private", directory / "config.json~")
    # A model that comes after them is loaded: they have been looked at by then.
    write_fake_version(repository, "last")
    await server.line("last:1 READY")
    assert starts(server) == 1
    assert not [line for line in server.lines if ".git" in line or "pycache" in line]


async def test_a_directory_removed_while_it_loads(start: Start, repository: Path) -> None:
    write_fake_version(repository, "other", answer="b")
    directory = write_fake_version(repository, load_gate="gate")
    os.mkfifo(directory / "gate")
    server = await start(SETTLE)
    await server.line("echo:1 LOADING")
    await run("rm", "-r", directory.parent)
    await server.line("echo:1 UNAVAILABLE")
    url = await server.ready()
    assert await answer(url, "other") == "b"
    await eventually(lambda: answer(url), lambda text: "does not exist" in text)
