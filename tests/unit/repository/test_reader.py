from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from blink_server.backend import ModelVersion
from blink_server.errors import BlinkError, Problem
from blink_server.plugins import Plugins, load_plugins
from blink_server.repository.policy import VersionKey
from blink_server.repository.reader import RepositoryReader
from blink_server.repository.settling import Settling
from blink_server.repository.wanted import WantedSet
from blink_server.testing.tiny_repository import (
    CheckOnlyBackend,
    CheckOnlyPlugin,
    write_json,
    write_tiny_version,
)


class Rig:
    """A reader whose clock is the test's, and a count of what its backend has checked."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self.now = 0.0
        self.checked: list[str] = []
        plugin = CheckOnlyPlugin(CheckOnlyBackend(self._check))
        plugins: Plugins = load_plugins([], extra={"tiny": plugin})
        settling = Settling(1.0, monotonic=lambda: self.now)
        self.reader = RepositoryReader([repository], plugins, settling)

    def _check(self, version: ModelVersion) -> list[Problem]:
        self.checked.append(version.key)
        return []

    def read(self, *, after: float = 0.0) -> WantedSet:
        self.now += after
        return self.reader.read()

    def settled(self) -> WantedSet:
        self.read()
        return self.read(after=1.0)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def keys(wanted: WantedSet) -> list[VersionKey]:
    return [each.key for each in wanted.valid]


def test_a_new_model_is_seen_when_it_is_still(rig: Rig) -> None:
    write_tiny_version(rig.repository)
    assert rig.read().valid == []
    assert rig.reader.due == pytest.approx(1.0)
    assert keys(rig.read(after=1.0)) == [VersionKey("tiny", 1)]
    assert rig.reader.due is None


def test_a_new_model_comes_with_all_that_is_still_copied_of_it(rig: Rig) -> None:
    write_tiny_version(rig.repository, version=2)
    rig.read()
    write_tiny_version(rig.repository, version=3)
    assert rig.read(after=1.0).valid == []
    write_json(rig.repository / "tiny" / "model.json", {"version_policy": {"all": {}}})
    assert keys(rig.read(after=1.0)) == [VersionKey("tiny", 2), VersionKey("tiny", 3)]


def test_a_version_in_the_making_hides_nothing(rig: Rig) -> None:
    write_tiny_version(rig.repository)
    rig.settled()
    write_tiny_version(rig.repository, version=2)
    assert keys(rig.read()) == [VersionKey("tiny", 1)]
    assert keys(rig.read(after=1.0)) == [VersionKey("tiny", 2)]


def test_a_version_whose_files_are_being_written_is_what_it_was(rig: Rig) -> None:
    directory = write_tiny_version(rig.repository)
    [before] = rig.settled().valid
    (directory / "model.onnx").write_bytes(b"half")
    assert rig.read().valid == [before]
    (directory / "config.json").unlink()
    assert rig.read(after=0.9).valid == [before]
    wanted = rig.read(after=1.0)
    assert wanted.valid == []
    assert [each.reason for each in wanted.invalid] == ["config.json: is missing"]


def test_changed_files_are_another_generation_settings_are_not(rig: Rig) -> None:
    directory = write_tiny_version(rig.repository)
    [before] = rig.settled().valid
    write_json(
        rig.repository / "tiny" / "model.json", {"aliases": ["t"], "replace": "unload_first"}
    )
    [named] = rig.read().valid
    assert (named.aliases, named.unload_first) == (("t",), True)
    assert named.generation == before.generation
    limits = {"context_length": 512, "max_queue": 3}
    settings = {**before.version.config, "limits": limits, "default_sampling": {"top_k": 5}}
    write_json(directory / "config.json", settings)
    [soft] = rig.settled().valid
    assert soft.generation == before.generation
    assert soft.version.config["limits"]["max_queue"] == 3
    write_json(rig.repository / "tiny" / "model.json", {"defaults": {"limits": {"max_rows": 2}}})
    [hard] = rig.read().valid
    assert hard.generation != before.generation


def test_what_has_not_changed_is_not_checked_again(rig: Rig) -> None:
    directory = write_tiny_version(rig.repository)
    rig.settled()
    rig.read(after=5.0)
    assert rig.checked == ["tiny:1"]
    os.utime(directory / "model.onnx", (1, 1))
    rig.settled()
    assert rig.checked == ["tiny:1"] * 2


def test_a_model_that_cannot_be_read_is_held_with_what_it_has(rig: Rig) -> None:
    write_tiny_version(rig.repository)
    write_tiny_version(rig.repository, "other")
    rig.settled()
    (rig.repository / "tiny" / "model.json").write_text("{")
    wanted = rig.read()
    assert set(wanted.held) == {"tiny"}
    assert keys(wanted) == [VersionKey("other", 1)]
    assert len(wanted.problems) == 1
    (rig.repository / "tiny" / "model.json").unlink()
    assert keys(rig.read()) == [VersionKey("other", 1), VersionKey("tiny", 1)]


def test_a_model_without_versions_or_gone_wants_none(rig: Rig) -> None:
    directory = write_tiny_version(rig.repository)
    rig.settled()
    shutil.rmtree(directory)
    wanted = rig.read()
    assert (wanted.valid, wanted.held) == ([], {})
    shutil.rmtree(directory.parent)
    assert rig.read().problems == []


def test_a_model_in_two_repositories_is_held(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "a")
    write_tiny_version(tmp_path / "a")
    write_tiny_version(tmp_path / "b")
    plugins = load_plugins([], extra={"tiny": CheckOnlyPlugin()})
    reader = RepositoryReader([rig.repository, tmp_path / "b"], plugins, Settling(0.0))
    assert set(reader.read().held) == {"tiny"}


def test_a_repository_that_cannot_be_read_is_named_and_forgets_nothing(rig: Rig) -> None:
    write_tiny_version(rig.repository)
    rig.settled()
    aside = rig.repository.with_name("aside")
    rig.repository.rename(aside)
    with pytest.raises(BlinkError, match="No such file"):
        rig.read()
    aside.rename(rig.repository)
    assert keys(rig.read()) == [VersionKey("tiny", 1)]
    assert rig.checked == ["tiny:1"]


def test_files_that_may_not_be_read_are_a_problem_of_their_version(
    short_path: Path, request: pytest.FixtureRequest
) -> None:
    repository = short_path / "repository"
    directory = write_tiny_version(repository)
    write_tiny_version(repository, "other")
    short_path.chmod(0o755)
    (directory / "tokenizer.json").chmod(0)
    request.getfixturevalue("unprivileged")
    rig = Rig(repository)
    wanted = rig.settled()
    assert keys(wanted) == [VersionKey("other", 1)]
    assert "Permission denied" in wanted.invalid[0].reason


def test_a_link_to_where_one_may_not_look_stops_its_model_alone(
    short_path: Path, request: pytest.FixtureRequest
) -> None:
    repository = short_path / "repository"
    write_tiny_version(short_path / "secret")
    write_tiny_version(repository, "other")
    (repository / "tiny").symlink_to(short_path / "secret" / "tiny")
    (short_path / "secret").chmod(0)
    short_path.chmod(0o755)
    request.getfixturevalue("unprivileged")
    wanted = Rig(repository).settled()
    assert keys(wanted) == [VersionKey("other", 1)]
    assert set(wanted.held) == {"tiny"}
    assert "Permission denied" in wanted.problems[0].expected
