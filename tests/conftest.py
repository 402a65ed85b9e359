from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path leaves room for Unix sockets' names, unlike `tmp_path`."""
    path = Path(tempfile.mkdtemp(prefix="blink-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
