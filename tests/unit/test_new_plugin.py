"""`blink-server new-plugin`: for every kind a plugin that loads, and tests of it that pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from blink_server.cli import main
from blink_server.new_plugin import KINDS, SKELETONS, write_plugin_project
from blink_server.plugin_choice import PluginChoice
from blink_server.plugin_door import HOOKS
from blink_server.plugins import load_plugins


def new_plugin(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["new-plugin", *map(str, arguments)])
    return result.exit_code, result.output


def test_there_is_a_skeleton_for_every_kind() -> None:
    found = {each.name for each in SKELETONS.iterdir() if (each / "plugin.py").exists()}
    assert found == set(KINDS)


def test_every_hook_is_in_a_skeleton() -> None:
    texts = [file.read_text(encoding="utf-8") for file in SKELETONS.glob("*/plugin.py")]
    assert [hook for hook in HOOKS if not any(f"def {hook}(" in text for text in texts)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_loads_from_its_folder(tmp_path: Path, kind: str) -> None:
    status, output = new_plugin("mine", "--kind", kind, "--to", tmp_path)
    assert status == 0
    assert f"wrote {tmp_path / 'mine'}" in output
    texts = [file.read_text() for file in (tmp_path / "mine").rglob("*") if file.is_file()]
    choice = PluginChoice(directories=(tmp_path / "mine",))
    found = load_plugins(choice=choice)
    [plugin] = [each for each in found.loaded if each.name == "mine"]
    assert plugin.hooks
    assert not any("my_plugin" in text or "skeletons" in text for text in texts)


def run_tests(directory: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tests_of_every_kind_pass(tmp_path: Path) -> None:
    kinds = [kind for kind in KINDS if kind != "sampler"]  # which takes two compilers' time
    for kind in kinds:
        write_plugin_project(f"a_{kind}", kind, tmp_path)
    projects = os.pathsep.join(str(tmp_path / f"a_{kind}") for kind in kinds)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    output = run_tests(tmp_path, "-c", "pytest.ini", PYTHONPATH=projects)
    assert "passed" in output


@pytest.mark.slow  # a process for each
@pytest.mark.parametrize("kind", KINDS)
def test_the_tests_pass_as_their_author_runs_them(tmp_path: Path, kind: str) -> None:
    assert "passed" in run_tests(write_plugin_project("mine", kind, tmp_path))


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("import", "backend", "it is a word of Python's own"),
        ("json", "backend", "it is a module of Python's standard library"),
        ("blink_server", "routes", "there is a package of that name, in .*__init__.py"),
        ("numpy", "observer", "there is a package of that name, in .*numpy"),
        ("tests", "backend", "the project's tests are in the folder of that name"),
        ("gguf", "importer", "another importer has it"),
        ("llama3_json", "tool_parser", "another tool parser has it"),
        ("mine_", "backend", "does not end with '_'"),
    ],
)
def test_a_name_that_could_not_work_is_refused(
    tmp_path: Path, name: str, kind: str, reason: str
) -> None:
    status, output = new_plugin(name, "--kind", kind, "--to", tmp_path)
    assert status == 1
    assert f"error: '{name}'" in output
    assert re.search(reason, output)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_an_installed_plugin_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = load_plugins(choice=PluginChoice(directories=()), extra={"other": object()})
    monkeypatch.setattr("blink_server.new_plugin.load_plugins", lambda **_: taken)
    status, output = new_plugin("other", "--kind", "observer", "--to", tmp_path)
    assert (status, "another plugin has it" in output) == (1, True)


def test_a_name_that_is_none_and_a_folder_that_is_there_are_refused(tmp_path: Path) -> None:
    status, output = new_plugin("My-Plugin", "--kind", "backend", "--to", tmp_path)
    assert status == 1
    assert "lower-case letters" in output
    (tmp_path / "mine").mkdir()
    status, output = new_plugin("mine", "--kind", "backend", "--to", tmp_path)
    assert status == 1
    assert "is there already" in output
    assert list((tmp_path / "mine").iterdir()) == []
