"""The committed classes of characters are those of the `tokenizers` library that is installed."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "plugins" / "blink_bpe" / "tools" / "make_unicode_runs.py"


@pytest.mark.slow
def test_the_table_is_the_librarys() -> None:
    tool = runpy.run_path(str(TOOL))
    assert tool["TABLE"].read_text() == tool["table"](), f"run {TOOL.name}, and build anew"
