"""The native module's committed type stub says what the built module has."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import blink_persistent

STUB = Path(blink_persistent.__file__).with_name("_native.pyi")


def test_the_stub_is_that_of_the_built_module(tmp_path: Path) -> None:
    made = tmp_path / "_native.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-m", "blink_persistent._native"]
    subprocess.run([*command, "-o", str(made)], check=True, capture_output=True)
    # Compared as syntax trees: how the generator breaks lines is not the module's affair.
    committed, current = (ast.dump(ast.parse(path.read_text()), indent=1) for path in (STUB, made))
    assert committed == current, "the stub is out of date: make stubs"
