"""docs/operations.md against the command line, the schema and the files that it explains."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from blink_server.cli import COMMANDS, main
from blink_server.schemas import load_schema
from blink_server.serve import serve_command

DOCS = Path(__file__).parents[2] / "docs"
OPERATIONS = (DOCS / "operations.md").read_text(encoding="utf-8")
MODELS = (DOCS / "models.md").read_text(encoding="utf-8")
TENSORRT = (DOCS / "tensorrt.md").read_text(encoding="utf-8")
DPU = (DOCS / "dpu.md").read_text(encoding="utf-8")
MONITORING = (DOCS / "monitoring.md").read_text(encoding="utf-8")
UNIT = DOCS / "deploy" / "blink-server.service"
CONTAINERFILE = DOCS / "deploy" / "Containerfile"
ROW = re.compile(r"^\| `(?P<name>[^`]+)` \| (?P<default>[^|]*) \| (?P<meaning>[^|]*) \|$", re.M)


def section(title: str) -> str:
    _, _, after = OPERATIONS.partition(f"\n## {title}\n")
    assert after, f"no section {title!r}"
    return after.partition("\n## ")[0]


def rows(title: str) -> dict[str, str]:
    """The first words of a section's table, and the defaults beside them."""
    return {
        row["name"].split()[0]: row["default"].strip("`") for row in ROW.finditer(section(title))
    }


def options(command: click.Command) -> dict[str, Any]:
    """Flags and their defaults."""
    described = command.to_info_dict(click.Context(command))["params"]
    return {
        each["opts"][0]: each["default"]
        for each in described
        if each["param_type_name"] == "option" and "--help" not in each["opts"]
    }


def test_every_flag_of_serve_has_its_row_and_its_default() -> None:
    flags = options(serve_command)
    documented = rows("Flags of `serve`")
    assert list(documented) == list(flags)
    flags["--model-repository"] = "model_repository"
    for flag, default in flags.items():
        if default not in (None, False, (), []):
            shown = f"{default:g}" if isinstance(default, float) else str(default)
            shown = "on" if default is True else shown
            assert documented[flag] == shown, flag


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("check", OPERATIONS),
        ("plugins", OPERATIONS),
        ("new-plugin", OPERATIONS),
        ("import", MODELS),
        ("build", MODELS + TENSORRT),
        ("models pull", MODELS),
        ("frontend", OPERATIONS + DPU),
        ("log-level", OPERATIONS),
        ("top", MONITORING),
    ],
)
def test_every_flag_of_the_other_commands_is_named(path: str, text: str) -> None:
    command: click.Command = main
    for name in path.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    named = set(re.findall(r"--[a-z-]+", text))
    assert [flag for flag in options(command) if flag not in named] == []


def test_no_command_is_forgotten() -> None:
    assert set(COMMANDS) == {
        "bench",
        "build",
        "check",
        "frontend",
        "import",
        "log-level",
        "models",
        "new-plugin",
        "plugins",
        "serve",
        "top",
    }


def test_every_limit_of_a_version_has_its_row_and_its_default() -> None:
    limits = load_schema("model_config")["$defs"]["limits"]["properties"]
    documented = rows("Limits")
    assert set(documented) == set(limits)
    for name, limit in limits.items():
        if "default" in limit:
            assert documented[name] == str(limit["default"]), name


def parsed(arguments: list[str]) -> dict[str, Any]:
    return serve_command.make_context("serve", arguments).params


def test_the_units_command_is_one_that_serve_understands() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text(encoding="utf-8").replace("\\\n", " "))
    service = unit["Service"]
    program, command, *arguments = shlex.split(service["ExecStart"])
    assert (Path(program).name, command) == ("blink-server", "serve")
    options = parsed(arguments)
    assert options["runtime_dir"] == Path("/run", service["RuntimeDirectory"])
    assert options["exit_timeout_seconds"] < int(service["TimeoutStopSec"])
    # A successor needs the directory, private, and what lives on beside it.
    assert service["RuntimeDirectoryMode"] == "0700"
    assert service["RuntimeDirectoryPreserve"] == "restart"
    assert service["KillMode"] == "process"


def test_the_image_is_made_of_files_that_exist_and_runs_serve() -> None:
    lines = CONTAINERFILE.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    instructions = [line.split(maxsplit=1) for line in lines if line and line[0] != "#"]
    copied = [
        source
        for name, rest in instructions
        if name == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]
    assert len(copied) > 3
    assert [name for name in copied if not (DOCS.parent / name).exists()] == []
    words = dict(instructions)
    _, command, *arguments = json.loads(words["ENTRYPOINT"])
    assert command == "serve"
    options = parsed([*arguments, *json.loads(words["CMD"])])
    assert str(options["port"]) == words["EXPOSE"]
    assert options["host"] != "127.0.0.1"
    assert options["api_key_file"] is not None
    assert words["USER"] == "blink"
