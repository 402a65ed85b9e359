"""On what a benchmark of the checkout ran."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from blink_server.bench import machine


def describe_machine() -> dict[str, Any]:
    """The machine, and the commit that is measured."""
    return {**machine.describe_machine(), "commit": _commit()}


def _commit() -> str:
    """The checkout's commit; a mark where the tree has other contents."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    return finished.stdout.strip() or "not a checkout"
