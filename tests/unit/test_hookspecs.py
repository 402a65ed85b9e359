from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest

from blink_server import hookspecs
from blink_server.plugin_door import Candidate, Door

HOOKS = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("blink_")}
ROOT = Path(__file__).parents[2]


def test_there_are_hooks() -> None:
    assert "blink_backends" in HOOKS


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_documented_with_its_exact_signature(name: str) -> None:
    arguments = ", ".join(inspect.signature(HOOKS[name]).parameters)
    headings = (ROOT / "docs" / "plugins.md").read_text().splitlines()
    assert f"### `{name}({arguments})`" in headings


def test_no_hook_is_documented_that_does_not_exist() -> None:
    text = (ROOT / "docs" / "plugins.md").read_text()
    headings = [line for line in text.splitlines() if line.startswith("### `")]
    assert {heading.split("`")[1].partition("(")[0] for heading in headings} == set(HOOKS)


def test_the_reference_is_what_the_hooks_say() -> None:
    tool = ROOT / "tools" / "hook_reference.py"
    assert subprocess.run([sys.executable, tool, "--check"]).returncode == 0, f"run {tool}"


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_has_an_example_that_implements_it(name: str) -> None:
    _, _, example = inspect.cleandoc(HOOKS[name].__doc__ or "").partition("\nExample:\n")
    plugin = types.ModuleType("example")
    vars(plugin)["hookimpl"] = hookspecs.hookimpl
    exec(textwrap.dedent(example), vars(plugin))
    door = Door(strict=True)
    door.admit([Candidate("example", "docs", "", lambda: plugin)])
    assert door.loaded["example"].hooks == (name,)


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_an_empty_function_with_a_contract(name: str) -> None:
    [function] = ast.parse(inspect.getsource(HOOKS[name])).body
    assert isinstance(function, ast.FunctionDef)
    assert ast.get_docstring(function)
    assert len(function.body) == 1


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_has_a_test(name: str) -> None:
    files = [*Path(__file__).parent.glob("test_*.py"), *(ROOT / "tests" / "http").glob("*.py")]
    tests = [each for file in files for each in ast.parse(file.read_text()).body]
    names = [
        each.name for each in tests if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert any(each.startswith(f"test_{name}") for each in names)
