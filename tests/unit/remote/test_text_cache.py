from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blink_server.errors import InvalidModel, Unavailable
from blink_server.remote import text_files
from blink_server.remote.text_cache import TextCache
from blink_server.remote.text_files import is_plain_name


async def fetched(site: Any, tmp_path: Path) -> tuple[TextCache, Path, dict[str, str]]:
    files = site.files.of(site.entry)
    cache = TextCache(tmp_path / "cache", site.link)
    return cache, await cache.directory_with(files), files


async def test_a_versions_text_comes_whole(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "PART_BYTES", 1000)
    _, directory, files = await fetched(site, tmp_path)
    assert set(files) == {"tokenizer.json", "chat_template.jinja"}
    source = Path(site.entry.directory)
    for name, digest in files.items():
        data = (directory / name).read_bytes()
        assert data == (source / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest
    assert len((directory / "tokenizer.json").read_bytes()) > 2000


async def test_what_is_there_is_not_fetched_again(site: Any, tmp_path: Path) -> None:
    _, directory, files = await fetched(site, tmp_path)
    await site.door.close()
    again = TextCache(tmp_path / "cache", site.link)
    assert await again.directory_with(files) == directory
    with pytest.raises(Unavailable, match="the host at 127"):
        await again.directory_with({"other.json": "00"})


async def test_a_damaged_file_is_fetched_again(site: Any, tmp_path: Path) -> None:
    cache, directory, files = await fetched(site, tmp_path)
    (directory / "tokenizer.json").write_text("damaged")
    again = await cache.directory_with(files)
    whole = (Path(site.entry.directory) / "tokenizer.json").read_bytes()
    assert (again / "tokenizer.json").read_bytes() == whole


async def test_a_file_that_changes_meanwhile_is_not_taken(site: Any, tmp_path: Path) -> None:
    files = site.files.of(site.entry)
    (Path(site.entry.directory) / "tokenizer.json").write_text("{}")
    cache = TextCache(tmp_path / "cache", site.link)
    with pytest.raises(Unavailable, match="has changed while it was fetched"):
        await cache.directory_with(files)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../b", ".hidden", "a//b", "", "a/.b"])
async def test_names_that_lead_elsewhere_are_refused(site: Any, tmp_path: Path, name: str) -> None:
    assert not is_plain_name(name)
    cache = TextCache(tmp_path / "cache", site.link)
    with pytest.raises(InvalidModel, match="is no name of a model's file"):
        await cache.directory_with({name: "00"})


def test_names_outside_the_version_are_not_offered(site: Any) -> None:
    config = {"tokenizer": {"name": "huggingface", "file": "../../../etc/passwd"}}
    assert site.files.of(replace(site.entry, config=config)) == {}


def test_files_of_a_tokenizers_own_are_offered(site: Any) -> None:
    (Path(site.entry.directory) / "vocabulary.bin").write_bytes(b"x")
    config = {"tokenizer": {"name": "mine", "vocabulary": "vocabulary.bin", "size": 3}}
    offered = site.files.of(replace(site.entry, config=config))
    assert set(offered) == {"tokenizer.json", "vocabulary.bin"}
