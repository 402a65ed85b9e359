"""Names of threads, which tell a process of several versions whose lines of the log are."""

from __future__ import annotations

import threading


def helper_name(work: str) -> str:
    """The name of a thread that does `work` for this one: its version's name comes first."""
    current = threading.current_thread()
    if current is threading.main_thread():
        return work
    return f"{current.name.partition(' ')[0]} {work}"
