"""`blink-server new-plugin`: a project with a plugin of one kind, and tests that pass."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from blink_server.errors import BlinkError
from blink_server.plugin_choice import PluginChoice
from blink_server.plugins import load_plugins

SKELETONS = Path(__file__).parent / "testing" / "skeletons"
KINDS = (
    *("backend", "engine", "importer", "observer", "routes", "sampler"),
    *("tokenizer", "tool_parser", "transport"),
)

_TESTS = "tests"

_PYPROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{project}"
version = "0.1.0"
description = "A {kind} for blink-server"
requires-python = ">=3.11"
dependencies = ["blink-server"]

[project.optional-dependencies]
dev = ["pytest>=8", "pytest-asyncio>=0.24"]

[project.entry-points."blink_server.plugins"]
{name} = "{name}"

[tool.setuptools]
packages = ["{name}"]
package-data = {{"{name}" = ["*.h"]}}

[tool.pytest.ini_options]
asyncio_mode = "auto"
asyncio_default_fixture_loop_scope = "function"
pythonpath = ["."]
"""

_README = """# {project}

A {kind} for blink-server. Its code is in `{name}/__init__.py`, its tests in `tests`.

    pip install -e '.[dev]'
    pytest
    blink-server plugins

Without installing it, `blink-server serve --plugin-dir .` takes it from here.
"""


@click.command("new-plugin")
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), required=True, help="What the plugin provides.")
@click.option(
    "--to",
    "parent",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    show_default="this folder",
    help="Directory in which to create the project directory.",
)
def new_plugin_command(name: str, kind: str, parent: Path) -> None:
    """Create the project NAME: a working plugin with tests, for you to change."""
    project = write_plugin_project(name, kind, parent)
    click.echo(f"wrote {project}; try: cd {project} && python -m pytest")


def write_plugin_project(name: str, kind: str, parent: Path) -> Path:
    """Write it below `parent`; returns its folder. Raises BlinkError, having written nothing."""
    if not re.fullmatch(r"[a-z]([a-z0-9_]*[a-z0-9])?", name):
        raise BlinkError(
            f"{name!r}: a plugin's name has lower-case letters, digits and '_' only; it begins "
            "with a letter and does not end with '_'"
        )
    project = parent / name
    if project.exists():
        raise BlinkError(f"{project} is there already")
    if taken := _taken_by(name, kind):
        raise BlinkError(f"{name!r} cannot be a plugin's name: {taken}; choose another")
    files = {project / path: text for path, text in _files(name, kind).items()}
    try:
        for path, text in files.items():
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o644)  # what others could change would not be loaded
    except OSError as error:
        raise BlinkError(f"{project}: {error.strerror}") from error
    return project


def _taken_by(name: str, kind: str) -> str:
    """What already has the name: the plugin's module could not be imported, or would be in its way.

    Empty: nothing has.
    """
    if keyword.iskeyword(name):
        return "it is a word of Python's own"
    if name in sys.stdlib_module_names:
        return "it is a module of Python's standard library"
    if name == _TESTS:
        return "the project's tests are in the folder of that name"
    plugins = load_plugins(choice=PluginChoice(directories=(), strict=False), warn=False)
    if name in plugins.names:
        return "another plugin has it"
    named = getattr(plugins, f"{kind}s", None)  # routes and observers have no names
    if isinstance(named, dict) and name in named:
        return f"another {kind.replace('_', ' ')} has it"
    if (spec := find_spec(name)) is not None:
        place = spec.origin or ", ".join(spec.submodule_search_locations or ())
        return f"there is a package of that name, in {place}"
    return ""


def _files(name: str, kind: str) -> dict[str, str]:
    """What the project consists of, by its path."""
    words = {"name": name, "kind": kind.replace("_", " "), "project": name.replace("_", "-")}
    files = {"pyproject.toml": _PYPROJECT.format(**words), "README.md": _README.format(**words)}
    places = {"plugin.py": f"{name}/__init__.py", "test_plugin.py": f"{_TESTS}/test_{name}.py"}
    for skeleton in sorted((SKELETONS / kind).glob("*.*")):
        text = skeleton.read_text(encoding="utf-8").replace("my_plugin", name)
        imported = f"from blink_server.testing.skeletons.{kind} import plugin\n"
        if imported in text:
            text = text.replace(imported, "")
            text = text.replace("\n\n\n", f"\n\nimport {name} as plugin\n\n\n", 1)
        files[places.get(skeleton.name, f"{name}/{skeleton.name}")] = text
    return files
