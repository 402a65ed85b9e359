from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from blink_server import cli, plugins
from blink_server.errors import BlinkError
from blink_server.testing.tiny_repository import write_json, write_tiny_version

PLUGIN = """
from blink_server.testing.tiny_repository import CheckOnlyPlugin

plugin = CheckOnlyPlugin()
blink_backends = plugin.blink_backends
blink_engines = plugin.blink_engines
blink_samplers = plugin.blink_samplers
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository beside the only plugin, with the backend that tiny versions name."""
    monkeypatch.setattr(plugins, "entry_points", lambda group: [])
    (tmp_path / "plugins").mkdir(mode=0o755)
    file = tmp_path / "plugins" / "check_only.py"
    file.write_text(PLUGIN)
    file.chmod(0o644)
    (tmp_path / "repository").mkdir()
    return tmp_path / "repository"


def check(repository: Path, *options: str) -> Result:
    arguments = ["check", str(repository), "--plugin-dir", str(repository.parent / "plugins")]
    return CliRunner().invoke(cli.main, [*arguments, *options])


def options_of(command: click.Command) -> Iterator[click.Option]:
    """Of the command and of those below it."""
    yield from (each for each in command.params if isinstance(each, click.Option))
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options_of(below)


def test_no_command_takes_a_secret_that_other_users_could_see_among_the_processes() -> None:
    secret = {"key", "token", "secret", "password"}
    options = [each for each in options_of(cli.main) if secret & set(each.opts[0].split("-"))]
    named = {each.opts[0] for each in options}
    assert {"--api-key-file", "--admin-key-file", "--token-file", "--tls-key"} <= named
    assert [
        each.opts for each in options if isinstance(each.type, click.types.StringParamType)
    ] == []


def test_help_names_every_command_without_importing_any() -> None:
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from blink_server.cli import main\n"
        "result = CliRunner().invoke(main, ['--help'])\n"
        "print(result.output)\n"
        "heavy = {'blink_server.check', 'blink_server.serve', 'blink_server.importers', 'numpy'}\n"
        "print('imported:', heavy & set(sys.modules))\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "imported: set()" in output
    for command in ("check", "import", "serve"):
        assert f"  {command} " in output


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_exists_and_has_help(name: str) -> None:
    result = CliRunner().invoke(cli.main, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert f"{name} [OPTIONS]" in result.output


def test_an_unknown_command_is_named() -> None:
    result = CliRunner().invoke(cli.main, ["chekc"])
    assert result.exit_code == 2
    assert "chekc" in result.stderr


def test_an_error_is_one_line_on_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def failing() -> None:
        raise BlinkError("port 127.0.0.1:8000 is in use")

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: failing)
    result = CliRunner().invoke(cli.main, ["serve"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "error: port 127.0.0.1:8000 is in use\n"


def test_version_is_printed() -> None:
    result = CliRunner().invoke(cli.main, ["--version"])
    assert result.exit_code == 0
    assert result.output.startswith("blink-server, version ")


def test_check_shows_what_is_good(repository: Path) -> None:
    write_tiny_version(repository, version=1)
    write_tiny_version(repository, version=2)
    result = check(repository)
    assert result.exit_code == 0
    rows = [line.split() for line in result.output.splitlines()]
    assert ["tiny", "1", "no", "check_only", "nothing", "512", "8"] in rows
    assert ["tiny", "2", "yes", "check_only", "nothing", "512", "8"] in rows
    assert result.output.splitlines()[-1] == f"{repository}: 2 valid versions, 0 problems"


def test_check_shows_long_names_whole(repository: Path) -> None:
    name = "a-model-with-a-name-that-" + "goes-on-and-" * 6 + "on"
    write_tiny_version(repository, name)
    rows = [line.split() for line in check(repository).output.splitlines()]
    assert [name, "1", "yes", "check_only", "nothing", "512", "8"] in rows


def test_check_shows_brackets_of_plugins_names(repository: Path) -> None:
    (repository.parent / "plugins" / "check_only.py").write_text(
        f"{PLUGIN}plugin._backend.name = 'echo[/x]'\n"
    )
    write_tiny_version(repository, backend="echo[/x]")
    result = check(repository)
    assert result.exit_code == 0, result.output
    assert ["tiny", "1", "yes", "echo[/x]", "nothing", "512", "8"] in [
        line.split() for line in result.output.splitlines()
    ]


def test_check_names_repositories_as_other_commands_do(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model_repository").mkdir()
    write_tiny_version(repository)
    write_tiny_version(tmp_path / "other", "elsewhere")

    def last_line(*arguments: str) -> str:
        result = CliRunner().invoke(cli.main, ["check", "--plugin-dir", "plugins", *arguments])
        return str(result.output.splitlines()[-1])

    asked = f"--model-repository={repository}", "--model-repository=other"
    assert last_line(*asked) == f"{repository}, other: 2 valid versions, 0 problems"
    assert last_line("other", asked[0]) == f"other, {repository}: 2 valid versions, 0 problems"
    assert last_line() == "model_repository: 0 valid versions, 0 problems"


def test_check_prints_every_problem_and_fails(repository: Path) -> None:
    good = write_tiny_version(repository, "good")
    bad = write_tiny_version(repository, "bad", limits={"context_length": 512, "max_rows": 0})
    (bad / "tokenizer.json").unlink()
    (repository / "worse" / "1.bak").mkdir(parents=True)
    result = check(repository)
    assert result.exit_code == 1
    assert f"{bad / 'config.json'}: limits.max_rows: is 0; must be at least 1\n" in result.output
    assert f"{bad / 'config.json'}: tokenizer.file: is 'tokenizer.json'; " in result.output
    assert f"{repository / 'worse'}: has no version" in result.output
    assert str(good) not in result.output
    assert result.output.splitlines()[-1] == f"{repository}: 1 valid version, 3 problems"


def test_check_looks_at_versions_that_are_not_served(repository: Path) -> None:
    write_tiny_version(repository, version=1, backend=3)
    write_tiny_version(repository, version=2)
    assert check(repository).exit_code == 1


def test_check_as_json(repository: Path) -> None:
    bad = write_tiny_version(repository, version=1, backend="check_onyl")
    write_tiny_version(repository, version=2)
    write_json(repository / "tiny" / "model.json", {"aliases": ["tiny"]})
    result = check(repository, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["ok"] is False
    [model] = document["models"]
    assert [(v["version"], v["selected"], len(v["problems"])) for v in model["versions"]] == [
        (1, False, 1),
        (2, True, 0),
    ]
    assert model["versions"][0]["problems"][0] == {
        "file": str(bad / "config.json"),
        "field": "backend",
        "value": "check_onyl",
        "expected": "no plugin offers this backend; did you mean 'check_only'?",
    }
    assert model["problems"][0]["field"] == "aliases"


def test_check_of_two_repositories_finds_two_models_of_one_name(
    repository: Path, tmp_path: Path
) -> None:
    write_tiny_version(repository)
    write_tiny_version(tmp_path / "other")
    result = check(repository, str(tmp_path / "other"))
    assert result.exit_code == 1
    assert "two models have the name 'tiny'" in result.output


def test_check_prints_names_that_are_no_text(repository: Path) -> None:
    (repository / "a\udcff").mkdir()
    result = check(repository)
    assert result.exit_code == 1
    assert r"a\udcff: is no name for a model" in result.output


def test_check_of_a_missing_repository_is_one_line(repository: Path) -> None:
    result = check(repository / "gone", "--plugin-dir", str(repository.parent / "plugins"))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_check_of_an_empty_repository_says_so(repository: Path) -> None:
    result = check(repository)
    assert result.exit_code == 0
    assert f"{repository}: no models" in result.output
