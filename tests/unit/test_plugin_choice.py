"""Which plugins are loaded: disabled ones, broken ones, those whose files have changed."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from blink_server.cli import main
from blink_server.plugin_choice import PluginChoice
from blink_server.plugins import PluginError, load_plugins

GOOD = """
from blink_server.hookspecs import hookimpl
__version__ = "1.2"
ANSWER = "first"

@hookimpl
def blink_engines():
    return {"good": lambda: ANSWER}
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write(tmp_path / "good.py", GOOD)
    return tmp_path


def write(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    file.chmod(0o644)
    return file


def choice(directory: Path, **changes: object) -> PluginChoice:
    return PluginChoice(directories=(directory,), **changes)  # type: ignore[arg-type]


def test_the_choice_survives_the_environment(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = choice(directory, disabled=frozenset({"a", "b"}), strict=False, reload=True)
    for name, value in made.variables().items():
        monkeypatch.setenv(name, value)
    assert PluginChoice.of_environment() == made


def test_the_environment_s_default_is_strict_and_reads_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in choice(tmp_path).variables():
        monkeypatch.delenv(name, raising=False)
    assert PluginChoice.of_environment() == PluginChoice(directories=())


def test_an_unsafe_folder_that_nobody_asked_for_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BLINK_PLUGIN_DIRS", raising=False)
    (tmp_path / "plugins").mkdir(mode=0o755)
    file = write(tmp_path / "plugins" / "good.py", GOOD)
    assert PluginChoice.of_environment().directories == (Path("plugins"),)
    file.chmod(0o664)
    assert PluginChoice.of_environment().directories == ()
    assert "nothing of the folder plugins is loaded: plugin plugins/good.py" in caplog.text
    with pytest.raises(PluginError, match="lets others write"):
        load_plugins([tmp_path / "plugins"])


def test_a_disabled_plugin_is_not_even_imported(directory: Path) -> None:
    write(directory / "loud.py", "raise SystemError")
    found = load_plugins(choice=choice(directory, disabled=frozenset({"loud"})))
    assert "good" in found.names
    assert "loud" not in found.names


def test_a_disabled_plugin_that_is_not_there_is_named(directory: Path) -> None:
    with pytest.raises(PluginError, match=r"no plugin 'goood' is there .*'good'"):
        load_plugins(choice=choice(directory, disabled=frozenset({"goood"})))


BROKEN = {
    "import": "import no_such_module_here",
    "hook": GOOD.replace("blink_engines", "blink_engine"),
    "argument": GOOD.replace("()", "(models)", 1),
    "contract": GOOD.replace('{"good": lambda: ANSWER}', "3"),
    "raises": GOOD.replace('{"good": lambda: ANSWER}', "1 / 0"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_stops_the_start_or_is_left_out(
    directory: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(directory / "bad.py", BROKEN[kind])
    with pytest.raises(PluginError, match="plugin 'bad'"):
        load_plugins(choice=choice(directory))
    found = load_plugins(choice=choice(directory, strict=False))
    assert "bad" not in found.names
    assert found.engines["good"]() == "first"
    assert [each.name for each in found.broken] == ["bad"]
    assert f"left out: plugin 'bad' ({file})" in caplog.text


def test_what_is_unsafe_or_shares_a_name_is_refused_all_the_same(directory: Path) -> None:
    write(directory / "twin.py", GOOD)
    with pytest.raises(PluginError, match="'good' and 'twin' both offer 'good'"):
        load_plugins(choice=choice(directory, strict=False))
    (directory / "twin.py").chmod(0o666)
    with pytest.raises(PluginError, match="lets others write"):
        load_plugins(choice=choice(directory, strict=False))


def test_changed_files_are_read_for_what_is_loaded_later(directory: Path) -> None:
    found = load_plugins(choice=choice(directory, reload=True))
    engines, before = found.engines, found.engines["good"]
    found.refresh()
    assert engines["good"] is before
    write(directory / "good.py", GOOD.replace("first", "other"))
    write(directory / "new.py", GOOD.replace('"good"', '"new"'))
    found.refresh()
    assert (before(), engines["good"](), engines["new"]()) == ("first", "other", "first")
    assert "new" in found.names


def test_what_stays_is_never_missed_while_files_are_read_again(directory: Path) -> None:
    found = load_plugins(choice=choice(directory, reload=True))
    engines, done, missed = found.engines, threading.Event(), 0

    def look() -> None:
        nonlocal missed
        while not done.is_set():
            missed += "good" not in engines

    looking = threading.Thread(target=look)
    looking.start()
    for round_ in range(10):
        write(directory / "good.py", GOOD + f"# {round_}\n")
        found.refresh()
    done.set()
    looking.join()
    assert missed == 0
    write(directory / "good.py", GOOD.replace('"good"', '"better"'))
    found.refresh()
    assert set(engines) & {"good", "better"} == {"better"}


def test_a_change_that_cannot_be_used_leaves_all_as_it_was(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = load_plugins(choice=choice(directory, reload=True))
    write(directory / "good.py", "x = (")
    found.refresh()
    assert found.engines["good"]() == "first"
    assert "good.py:1" in caplog.text
    write(directory / "good.py", GOOD.replace("first", "mended"))
    found.refresh()
    assert found.engines["good"]() == "mended"


def test_without_reload_changes_are_not_looked_at(directory: Path) -> None:
    found = load_plugins(choice=choice(directory))
    write(directory / "good.py", GOOD.replace("first", "other"))
    found.refresh()
    assert found.engines["good"]() == "first"


def plugins(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["plugins", *map(str, arguments)])
    return result.exit_code, result.output


def test_the_command_shows_names_versions_origins_and_hooks(directory: Path) -> None:
    status, output = plugins("--plugin-dir", directory, "--json")
    assert status == 0
    shown = {each["name"]: each for each in json.loads(output)["plugins"]}
    assert shown["good"] == {
        "name": "good",
        "origin": str(directory / "good.py"),
        "version": "1.2",
        "hooks": ["blink_engines"],
    }
    assert "blink_tokenizers" in shown["blink_server.builtin"]["hooks"]
    assert "blink_persistent" in shown
    status, output = plugins("--plugin-dir", directory, "--disable-plugin=blink_persistent")
    assert status == 0
    assert "good" in output
    assert "blink_persistent" not in output


def test_the_command_shows_brackets(tmp_path: Path) -> None:
    directory = tmp_path / "for [cuda]"
    directory.mkdir()
    write(directory / "good.py", GOOD.replace("1.2", "1[/x]"))
    status, output = plugins("--plugin-dir", directory)
    assert status == 0
    row = f"good 1[/x] {directory / 'good.py'} blink_engines"
    assert row in [" ".join(line.split()) for line in output.splitlines()]


def test_the_command_shows_broken_plugins_once_and_fails(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(directory / "bad.py", "x = (")
    status, output = plugins("--plugin-dir", directory)
    assert status == 1
    assert "broken: plugin 'bad'" in output
    assert "bad.py:1" in output
    assert (output.count("plugin 'bad'"), caplog.text) == (1, "")
    assert plugins("--plugin-dir", directory, "--no-strict-plugins")[0] == 0


def test_commands_leave_the_environment_alone(directory: Path) -> None:
    before = dict(os.environ)
    plugins("--plugin-dir", directory, "--disable-plugin=good")
    assert dict(os.environ) == before
