"""The native modules' committed type stubs say what the built modules have."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import blink_bpe
import blink_persistent

MODULES = [(blink_persistent, "_native"), (blink_bpe, "_bpe")]


@pytest.mark.parametrize(("package", "module"), MODULES)
def test_the_stub_is_that_of_the_built_module(
    package: ModuleType, module: str, tmp_path: Path
) -> None:
    made = tmp_path / "made.pyi"
    name = f"{package.__name__}.{module}"
    command = [sys.executable, "-m", "nanobind.stubgen", "-m", name, "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    assert package.__file__ is not None
    stub = Path(package.__file__).with_name(f"{module}.pyi")
    # Compared as syntax trees: how the generator breaks lines is not the module's affair.
    committed, current = (ast.dump(ast.parse(path.read_text()), indent=1) for path in (stub, made))
    assert committed == current, "the stub is out of date: make stubs"
