"""Host code, compiled by the system's C++ compiler when it is first needed, and kept."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from blink_persistent.gpu.compile import SOURCE_DIRECTORY, DeviceCodeError, cache_directory
from blink_server.errors import EngineFailure

_OPTIONS = ("-std=c++20", "-O2", "-ffp-contract=off", "-shared", "-fPIC", "-pthread")
_LONGEST_LOG = 4000


def compile_host_library(source: str, prologue: str) -> Path:
    """The shared library of `csrc/<source>` with `prologue` before its text.

    The compiler is $CXX, else c++, g++ or clang++. Raises EngineFailure with the compiler's words,
    or naming what to install.
    """
    compiler = _compiler()
    text = prologue + (SOURCE_DIRECTORY / source).read_text(encoding="utf-8")
    try:
        kept = cache_directory() / f"{_content_key(compiler, text)}.so"
    except DeviceCodeError as error:
        raise EngineFailure(str(error)) from error
    if kept.exists():
        return kept
    with tempfile.TemporaryDirectory(dir=kept.parent) as work:
        library = Path(work) / "library.so"
        command = [*compiler, *_OPTIONS, f"-I{SOURCE_DIRECTORY / 'include'}"]
        done = subprocess.run(
            [*command, "-x", "c++", "-", "-o", str(library)],
            input=text,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise EngineFailure(f"the sampler does not compile:\n{done.stderr[:_LONGEST_LOG]}")
        library.replace(kept)  # whole, or not at all
    return kept


def _compiler() -> list[str]:
    if given := os.environ.get("CXX"):
        return shlex.split(given)
    for name in ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return [found]
    raise EngineFailure(
        "a sampler plugin needs a C++ compiler where it runs on the host: install g++, or set CXX"
    )


def _content_key(compiler: list[str], text: str) -> str:
    digest = hashlib.sha256()
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True)
    for part in (*compiler, version.stdout, *_OPTIONS, text):
        digest.update(f"{part}\0".encode())
    for header in sorted((SOURCE_DIRECTORY / "include" / "blink").iterdir()):
        digest.update(f"{header.name}\0".encode() + header.read_bytes())
    return digest.hexdigest()[:40]
