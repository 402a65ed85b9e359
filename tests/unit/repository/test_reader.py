from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
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
        self.checking: Callable[[ModelVersion], None] = lambda _: None
        plugin = CheckOnlyPlugin(CheckOnlyBackend(self._check))
        plugins: Plugins = load_plugins([], extra={"tiny": plugin})
        settling = Settling(1.0, monotonic=lambda: self.now)
        self.reader = RepositoryReader([repository], plugins, settling)

    def _check(self, version: ModelVersion) -> list[Problem]:
        self.checked.append(version.key)
        self.checking(version)
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


class Held:
    """A check that goes on until it is let go."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("blink_server.repository.checks.PATIENCE", 0.0)
        self._done = threading.Event()
        self._at_work, self._gone_on = threading.Event(), threading.Event()
        self.begun = 0
        rig.checking = self._check

    def _check(self, version: ModelVersion) -> None:
        if version.model == "slow":
            self.begun += 1
            self._at_work.set()
            self._done.wait()
            self._gone_on.set()

    def until_at_work(self) -> None:
        assert self._at_work.wait(20)

    def let_go(self) -> None:
        self._done.set()
        assert self._gone_on.wait(20)


def until_checked(rig: Rig, model: str) -> WantedSet:
    while model in (wanted := rig.read()).checking:
        time.sleep(0.01)  # a check's thread tells nobody of its end
    return wanted


def test_a_check_that_takes_long_holds_up_no_other(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(rig, monkeypatch)
    write_tiny_version(rig.repository, model="slow")
    write_tiny_version(rig.repository, model="tiny")
    rig.settled()
    wanted = until_checked(rig, "tiny")
    assert keys(wanted) == [VersionKey("tiny", 1)]
    [waiting] = wanted.invalid
    assert waiting.reason == "its tokenizer and its backend have not checked it yet"
    assert wanted.checking == {"slow"}
    assert rig.reader.due is not None
    held.until_at_work()
    held.let_go()
    wanted = until_checked(rig, "slow")
    assert keys(wanted) == [VersionKey("slow", 1), VersionKey("tiny", 1)]
    assert held.begun == 1
    assert not rig.reader.due


def test_a_check_of_what_has_changed_meanwhile_is_left_behind(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(rig, monkeypatch)
    directory = write_tiny_version(rig.repository, model="slow")
    rig.settled()
    held.until_at_work()
    (directory / "config.json").write_text("{")
    rig.settled()
    held.let_go()
    [broken] = until_checked(rig, "slow").invalid
    assert "config.json" in broken.reason


def test_a_check_that_hangs_ends_at_its_limit(tmp_path: Path) -> None:
    release = threading.Event()

    def hang(version: ModelVersion) -> list[Problem]:
        release.wait()
        return []

    plugins = load_plugins([], extra={"tiny": CheckOnlyPlugin(CheckOnlyBackend(hang))})
    reader = RepositoryReader([tmp_path], plugins, Settling(0.0), check_seconds=0.05)
    write_tiny_version(tmp_path)
    [hung] = reader.read().invalid
    release.set()
    assert "have not checked it after 0.05 s" in hung.reason
