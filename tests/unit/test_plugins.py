from __future__ import annotations

import asyncio
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from blink_server import plugins as door
from blink_server.backend import Backend, Endpoint, ModelVersion, Session
from blink_server.errors import Unavailable
from blink_server.hookspecs import Connect, hookimpl
from blink_server.importers.checkpoint import Checkpoint
from blink_server.importers.failure import ModelImportError
from blink_server.importers.importer import Importer, Progress
from blink_server.model_events import ModelStateChange
from blink_server.plugins import PluginError, load_plugins, plugin_directories
from blink_server.testing.tiny_repository import (
    CheckOnlyBackend,
    CheckOnlyPlugin,
    write_tiny_version,
)


@pytest.fixture(autouse=True)
def entries(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The installed plugins: none but those a test puts here."""
    found: list[EntryPoint] = []
    monkeypatch.setattr(door, "entry_points", lambda group: [e for e in found if e.group == group])
    return found


def write_plugin(directory: Path, name: str, body: str) -> Path:
    directory.mkdir(mode=0o755, exist_ok=True)
    file = directory / f"{name}.py"
    text = "from blink_server.hookspecs import hookimpl\n\n" + textwrap.dedent(body)
    file.write_text(text, encoding="utf-8")
    file.chmod(0o644)
    return file


ENGINE = """
    @hookimpl
    def blink_engines():
        return {"mine": lambda: "an engine"}
"""


def test_blink_backends_are_found_by_their_names() -> None:
    backend = CheckOnlyBackend()
    found = load_plugins([], extra={"x": CheckOnlyPlugin(backend)})
    assert found.backends == {"check_only": backend}


def test_blink_backends_are_given_what_other_plugins_offer() -> None:
    given: dict[str, Mapping[str, Any]] = {}

    class Takes:
        @hookimpl
        def blink_backends(
            self, transports: Mapping[str, Connect], engines: Mapping[str, Any]
        ) -> Sequence[Backend]:
            given.update(transports=transports, engines=engines)
            return []

    load_plugins([], extra={"takes": Takes(), "gives": CheckOnlyPlugin()})
    assert (set(given["engines"]), set(given["transports"])) == ({"nothing"}, set())


def test_blink_engines_are_factories(tmp_path: Path) -> None:
    write_plugin(tmp_path, "p", ENGINE)
    assert load_plugins([tmp_path]).engines["mine"]() == "an engine"


def test_blink_samplers_are_factories(tmp_path: Path) -> None:
    body = ENGINE.replace("engine", "sampler").replace("lambda:", "lambda options:")
    write_plugin(tmp_path, "p", body)
    assert load_plugins([tmp_path]).samplers["mine"]({}) == "an sampler"


def test_blink_transports_connect() -> None:
    async def connect(version: ModelVersion, endpoint: Endpoint) -> Session:
        raise Unavailable(f"{version.key} at {endpoint.address}")

    class Transport:
        @hookimpl
        def blink_transports(self) -> Mapping[str, Connect]:
            return {"nowhere": connect}

    found = load_plugins([], extra={"x": Transport()}).transports["nowhere"]
    version = ModelVersion("m", 1, Path("m/1"), {})
    with pytest.raises(Unavailable, match=r"m:1 at \{\}"):
        asyncio.run(found(version, Endpoint("nowhere", {})))  # type: ignore[arg-type]


def test_blink_tokenizers_load_from_a_version_directory(tmp_path: Path) -> None:
    directory = write_tiny_version(tmp_path)
    load = load_plugins([]).tokenizers["huggingface"]
    tokenizer = load(directory, {"name": "huggingface", "file": "tokenizer.json"})
    ids = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.decode(ids) == "hello"


def test_blink_tool_parsers_are_found_by_their_names() -> None:
    class Plugin:
        @hookimpl
        def blink_tool_parsers(self) -> Mapping[str, Any]:
            return {"mine": lambda: "a format"}

    found = load_plugins([], extra={"x": Plugin()}).tool_parsers
    assert str(found["mine"]()) == "a format"
    assert found["hermes"]().recognises("{% if tools %}<tool_call>{% endif %}")


def test_blink_importers_open_what_the_command_names(tmp_path: Path) -> None:
    opened: list[tuple[str, str | None]] = []

    class Plugin:
        @hookimpl
        def blink_importers(self) -> Mapping[str, Importer]:
            return {"mine": self.open}

        def open(self, source: str, *, revision: str | None, progress: Progress) -> Checkpoint:
            opened.append((source, revision))
            raise ModelImportError(f"{source} is empty")

    found = load_plugins([], extra={"x": Plugin()}).importers
    assert set(found) == {"gguf", "hf", "mine"}
    with pytest.raises(ModelImportError, match="here is empty"):
        found["mine"]("here", revision="r", progress=lambda stage, fraction: None)
    assert opened == [("here", "r")]


def test_installed_plugins_come_through_their_entry_points(
    entries: list[EntryPoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plugin(tmp_path, "an_installed_plugin", ENGINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = EntryPoint("installed", "an_installed_plugin", door.ENTRY_POINT_GROUP)
    entries += [entry, entry]  # one distribution seen twice
    found = load_plugins([])
    assert "mine" in found.engines
    assert found.names == ("blink_server.builtin", "installed")


def test_two_installed_plugins_of_one_name_are_both_named(entries: list[EntryPoint]) -> None:
    group = door.ENTRY_POINT_GROUP
    entries += [EntryPoint("same", "json", group), EntryPoint("same", "ast", group)]
    with pytest.raises(PluginError, match=r"'same': entry point ast and entry point json"):
        load_plugins([])


def test_an_installed_plugin_that_cannot_be_imported_is_named(entries: list[EntryPoint]) -> None:
    entries.append(EntryPoint("lost", "no_such_module_here", door.ENTRY_POINT_GROUP))
    with pytest.raises(PluginError, match=r"'lost' .*ModuleNotFoundError"):
        load_plugins([])


def test_directories_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plugin(tmp_path / "a", "p", ENGINE)
    write_plugin(tmp_path / "b", "q", ENGINE.replace("mine", "yours"))
    monkeypatch.setenv(door.DIRECTORIES_VARIABLE, f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}")
    assert set(load_plugins().engines) == {"mine", "yours"}
    assert load_plugins([]).engines == {}


def test_directories_are_those_given_else_the_environment_s_else_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(door.DIRECTORIES_VARIABLE, raising=False)
    assert plugin_directories() == []
    write_plugin(tmp_path / "plugins", "p", ENGINE)
    assert plugin_directories() == [Path("plugins")]
    assert set(load_plugins().engines) == {"mine"}
    monkeypatch.setenv(door.DIRECTORIES_VARIABLE, "other")
    assert plugin_directories() == [Path("other")]
    assert plugin_directories([Path("given")]) == [Path("given")]
    monkeypatch.setenv(door.DIRECTORIES_VARIABLE, "")
    assert plugin_directories() == []


def test_a_folder_with_an_init_is_a_plugin_with_modules_of_its_own(tmp_path: Path) -> None:
    write_plugin(tmp_path, "p", "").unlink()
    write_plugin(tmp_path / "p", "__init__", "from .inner import NAME\n" + textwrap.dedent(ENGINE))
    write_plugin(tmp_path / "p", "inner", "NAME = 'x'")
    assert "mine" in load_plugins([tmp_path]).engines


def test_plugins_of_two_directories_keep_their_own_modules(tmp_path: Path) -> None:
    for name in ("a", "b"):
        body = f"import sys\nHERE = sys.modules[__name__]\nWHO = {name!r}\n" + textwrap.dedent(
            ENGINE.replace("mine", name).replace('"an engine"', "HERE.WHO")
        )
        write_plugin(tmp_path / name, f"p_{name}", body)
    engines = load_plugins([tmp_path / "a", tmp_path / "b"]).engines
    assert (engines["a"](), engines["b"]()) == ("a", "b")


def test_what_is_no_plugin_is_passed_over(tmp_path: Path) -> None:
    for name in ("_private", ".hidden"):
        write_plugin(tmp_path, name, "raise SystemError")
    (tmp_path / "README.md").write_text("about plugins")
    (tmp_path / "data").mkdir()
    tmp_path.chmod(0o777)  # nothing is loaded, so nothing is refused
    assert load_plugins([tmp_path]).names == ("blink_server.builtin",)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"gone: No such file or directory"):
        load_plugins([tmp_path / "gone"])


def make_writable(directory: Path, file: Path) -> Path:
    file.chmod(0o664)
    return file


def make_directory_writable(directory: Path, file: Path) -> Path:
    directory.chmod(0o757)
    return directory


def make_cache_writable(directory: Path, file: Path) -> Path:
    cache = directory / "__pycache__"
    cache.mkdir()
    cache.chmod(0o777)
    return cache


def make_link(directory: Path, file: Path) -> Path:
    file.rename(directory.parent / "elsewhere.py")
    file.symlink_to(directory.parent / "elsewhere.py")
    return file


@pytest.mark.parametrize(
    "spoil", [make_writable, make_directory_writable, make_cache_writable, make_link]
)
def test_a_plugin_that_others_could_change_is_refused_by_name_and_not_run(
    tmp_path: Path, spoil: Callable[[Path, Path], Path]
) -> None:
    ran = tmp_path / "ran"
    file = write_plugin(tmp_path / "dir", "p", f"open({str(ran)!r}, 'w').close()")
    guilty = spoil(tmp_path / "dir", file)
    with pytest.raises(PluginError, match="is refused") as caught:
        load_plugins([tmp_path / "dir"])
    assert f"plugin {guilty} " in str(caught.value)
    assert not ran.exists()


def test_a_plugin_of_another_user_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_plugin(tmp_path, "p", ENGINE)
    owner = file.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(PluginError, match=f"belongs to user {owner}, not to the server's user"):
        load_plugins([tmp_path])


def test_a_plugin_directory_s_plugin_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    file = write_plugin(tmp_path, "p", "import no_such_module_here")
    with pytest.raises(PluginError, match="ModuleNotFoundError") as caught:
        load_plugins([tmp_path])
    assert str(caught.value).endswith(f"[{file}:3]")


@pytest.mark.parametrize(
    ("inner", "place"),
    [("x = (", "inner.py:3"), ("import json\njson.loads('{')", "inner.py:4"), ("exit(3)", ":3")],
)
def test_the_plugin_s_own_line_is_named_where_its_import_ends(
    tmp_path: Path, inner: str, place: str
) -> None:
    write_plugin(tmp_path / "p", "__init__", "from .inner import x")
    write_plugin(tmp_path / "p", "inner", inner)
    with pytest.raises(PluginError) as caught:
        load_plugins([tmp_path])
    assert str(caught.value).endswith(f"{place}]")


def test_a_misspelt_hook_is_refused_and_the_nearest_suggested(tmp_path: Path) -> None:
    file = write_plugin(tmp_path, "p", ENGINE.replace("blink_engines", "blink_engine"))
    with pytest.raises(PluginError) as caught:
        load_plugins([tmp_path])
    assert "'p'" in str(caught.value)
    assert f"blink_engine; did you mean 'blink_engines'? [{file}:4]" in str(caught.value)


def test_an_unknown_argument_of_a_hook_is_refused(tmp_path: Path) -> None:
    body = ENGINE.replace("blink_engines()", "blink_backends(engines, models)", 1)
    file = write_plugin(tmp_path, "p", body)
    with pytest.raises(PluginError) as caught:
        load_plugins([tmp_path])
    assert "blink_backends with an argument 'models'" in str(caught.value)
    assert f"it may take engines, samplers, transports [{file}:4]" in str(caught.value)


def test_a_hook_without_its_marker_is_refused(tmp_path: Path) -> None:
    file = write_plugin(tmp_path, "p", ENGINE.replace("@hookimpl", ""))
    with pytest.raises(PluginError) as caught:
        load_plugins([tmp_path])
    assert f"has blink_engines without @hookimpl before it [{file}:5]" in str(caught.value)


def test_two_plugins_of_one_name_are_both_named(tmp_path: Path) -> None:
    first = write_plugin(tmp_path / "a", "p", "")
    second = write_plugin(tmp_path / "b", "p", "")
    with pytest.raises(PluginError) as caught:
        load_plugins([tmp_path / "a", tmp_path / "b"])
    assert f"'p': {first} and {second}" in str(caught.value)


def test_two_offers_of_one_name_name_both_plugins(tmp_path: Path) -> None:
    write_plugin(tmp_path, "p", ENGINE)
    write_plugin(tmp_path, "q", ENGINE)
    with pytest.raises(PluginError, match="'p' and 'q' both offer 'mine' through blink_engines"):
        load_plugins([tmp_path])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("blink_engines(): return ['mine']", "not a dict by name"),
        ("blink_engines(): return {'mine': 3}", "offers can be called"),
        ("blink_backends(): return {'mine': 3}", "not a list of backends"),
        ("blink_backends(): return [object()]", "is not a Backend: it lacks build, check, connect"),
        ("blink_engines(): return 1 / 0", "failed in blink_engines: ZeroDivisionError"),
    ],
)
def test_a_hook_that_breaks_its_contract_is_refused(
    tmp_path: Path, body: str, message: str
) -> None:
    write_plugin(tmp_path, "p", f"@hookimpl\ndef {body}")
    with pytest.raises(PluginError, match="plugin 'p'") as caught:
        load_plugins([tmp_path])
    assert message in str(caught.value)


def test_blink_model_state_changed_tells_everybody_whatever_one_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[ModelStateChange] = []

    class Broken:
        @hookimpl
        def blink_model_state_changed(self) -> None:
            raise ValueError("boom")

    class Watching:
        @hookimpl
        def blink_model_state_changed(self, change: ModelStateChange) -> None:
            seen.append(change)

    extra = {"first": Watching(), "broken": Broken(), "last": Watching()}
    change = ModelStateChange(
        model="m",
        version=1,
        epoch=2,
        previous="LOADING",
        state="READY",
        reason="",
        seconds=0.5,
        at=0.0,
    )
    load_plugins([], extra=extra).state_changed(change)
    assert seen == [change, change]
    assert "plugin broken: blink_model_state_changed failed" in caplog.text
