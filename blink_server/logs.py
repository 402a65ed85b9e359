"""One form for every log line of the server's own processes."""

from __future__ import annotations

import logging

LEVELS = ("debug", "info", "warning", "error")


def configure_logging(level: str) -> None:
    """Log to standard error from `level` up; warnings at least from libraries."""
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)-7s %(message)s", force=True
    )
    logging.getLogger("blink_server").setLevel(level.upper())
