#!/usr/bin/env python3
"""Check the engine `tensorrt` against the real signatures of several TensorRT versions.

    tools/check_tensorrt_types.py [VERSION ...]

NVIDIA's libraries are large and come without type stubs, but the Python bindings alone are small,
and their docstrings say every signature. They are fetched, loaded with stand-ins for the
libraries that they link, and written as stubs (kept in build/tensorrt-stubs). Then mypy checks
the package with each version's. Exit status: 0; 1: mypy found something; 77: the bindings cannot
be had here (no package index, no C++ compiler).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STUBS = ROOT / "build" / "tensorrt-stubs"
ENGINE = ROOT / "backends" / "blink_persistent" / "engines" / "tensorrt"
VERSIONS = ("11.4.0.106", "10.16.1.11")
NEEDS_11 = {"native_attention.py"}  # refuses older versions itself
CANNOT = 77

# What the bindings take from the libraries: nothing of it is called while signatures are read.
_SYMBOLS = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "getBuilderPluginRegistry",
    "getNvOnnxParserVersion",
    "getPluginRegistry",
    "initLibNvInferPlugins",
)
_LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")


class CannotBeHad(Exception):
    """Why there are no stubs."""


def main(versions: list[str]) -> int:
    status = 0
    for version in versions or list(VERSIONS):
        try:
            stubs = stubs_of(version)
        except CannotBeHad as reason:
            print(f"TensorRT {version}: {reason}", file=sys.stderr)
            return CANNOT
        print(f"TensorRT {version}:", flush=True)
        status |= check(stubs, engine_files(version))
    return status


def stubs_of(version: str) -> Path:
    """The directory with the package `tensorrt` of a version, made where it is not there yet."""
    directory = STUBS / version
    if not directory.is_dir():
        STUBS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=STUBS) as scratch:
            made = _make_stubs(version, Path(scratch))
            try:
                made.rename(directory)
            except OSError:
                if not directory.is_dir():  # or somebody else has made it meanwhile
                    raise
    return directory


def engine_files(version: str) -> list[Path]:
    """The package's files that are for this version."""
    old = int(version.split(".")[0]) < 11
    return [file for file in sorted(ENGINE.glob("*.py")) if not (old and file.name in NEEDS_11)]


def check(stubs: Path, files: list[Path]) -> int:
    """mypy's status, of the files with these stubs."""
    config = stubs / "mypy.ini"
    backends = ROOT / "backends"
    config.write_text(
        "[mypy]\nstrict = true\nexplicit_package_bases = true\n"
        f"mypy_path = {stubs}:{ROOT}:{backends}\nwarn_unused_ignores = false\n"
        "follow_imports = silent\nignore_missing_imports = true\n",
        encoding="utf-8",
    )
    options = ["--config-file", str(config), "--cache-dir", str(stubs / "cache")]
    command = [sys.executable, "-m", "mypy", *options, *map(str, files)]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def fetch_bindings(version: str, scratch: Path) -> Path:
    """The package `tensorrt_bindings` of a version in `scratch`, with stand-ins for its libraries.

    Raises CannotBeHad.
    """
    name = f"tensorrt-cu13-bindings=={version}"
    _run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch, name])
    (wheel,) = scratch.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(scratch)
    bindings, major = scratch / "tensorrt_bindings", version.split(".")[0]
    source = scratch / "standin.cc"
    functions = "\n".join(f"void* {symbol}() {{ return nullptr; }}" for symbol in _SYMBOLS)
    source.write_text(f'extern "C" {{\n{functions}\n}}\n', encoding="utf-8")
    for library in _LIBRARIES:
        _run(["c++", "-shared", "-fPIC", source, "-o", bindings / f"lib{library}.so.{major}"])
    return bindings


def _make_stubs(version: str, scratch: Path) -> Path:
    """Fetch, load, describe. Raises CannotBeHad."""
    fetch_bindings(version, scratch)
    stubgen = "import sys; from mypy.stubgen import main; main(sys.argv[1:])"
    module = "tensorrt_bindings.tensorrt"
    out = scratch / "out"
    _run([sys.executable, "-c", stubgen, "-q", "--inspect-mode", "-m", module, "-o", out], scratch)
    package = scratch / version / "tensorrt"
    package.mkdir(parents=True)
    text = (out / "tensorrt_bindings" / "tensorrt.pyi").read_text(encoding="utf-8")
    (package / "__init__.pyi").write_text(_as_called(text), encoding="utf-8")
    (package / "_module.pyi").write_text(_module_class(text), encoding="utf-8")
    return package.parent


def _as_called(text: str) -> str:
    """The stub with what the bindings really take, and with the module's own class, `Trt`."""
    text = text.replace("bool: DataType\n", "", 1)  # hides the type that signatures mean
    lines = []
    for line in text.splitlines():
        if line.lstrip().startswith("def "):
            # Any sequence of numbers is converted.
            line = re.sub(r": (Dims|Permutation)\b", r": \1 | collections.abc.Sequence[int]", line)
            if "= ...) ->" not in line:  # a default before a parameter without one
                line = line.replace(" = ...", "")
        line = re.sub(r"^(    (?!shape)\w+): (Dims|Permutation)$", r"\1: Any", line)
        lines.append(line)
        if line == "class Dims:":
            lines.append("    def __iter__(self) -> collections.abc.Iterator[int]: ...")
    return "\n".join([*lines, "from ._module import Trt as Trt", ""])


def _module_class(text: str) -> str:
    """A class with the members of the module, to annotate a module that is passed around with."""
    classes = [
        f"    {name}: type[tensorrt.{name}]" for name in re.findall(r"^class (\w+)", text, re.M)
    ]
    functions = [f"    {name}: Any" for name in re.findall(r"^def (\w+)", text, re.M)]
    lines = ["import tensorrt", "from typing import Any", "", "class Trt:"]
    lines += ["    __name__: str", "    __version__: str", *classes, *functions]
    return "\n".join([*lines, ""])


def _run(command: list[str | Path], directory: Path = ROOT) -> None:
    """Raises CannotBeHad with the command's last line."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=directory,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        raise CannotBeHad(str(error)) from error
    if done.returncode:
        last = (done.stdout.strip().splitlines() or ["no message"])[-1]
        raise CannotBeHad(f"{command[0]} failed: {last}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
