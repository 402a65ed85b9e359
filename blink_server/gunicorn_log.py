"""Gunicorn's own log lines, in the form of all others."""

from __future__ import annotations

from typing import Any

from gunicorn.glogging import Logger

from blink_server.logs import configure_logging


class GunicornLog(Logger):  # type: ignore[misc]  # gunicorn has no types
    """Hands what gunicorn has to say to the root logger; there is no access log of its own."""

    def setup(self, cfg: Any) -> None:
        """In the arbiter and in each worker, before anything is logged."""
        super().setup(cfg)
        configure_logging()
        for handler in list(self.error_log.handlers):
            self.error_log.removeHandler(handler)
        self.error_log.propagate = True
