"""The options of commands that listen for HTTP: where, by how many workers, and for whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from blink_server.access import check_access
from blink_server.http_options import HttpOptions
from blink_server.option_group import AbsolutePath, option, option_group


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontOptions:
    """What decides how HTTP is served; a successor takes a front over if `facts` are equal."""

    host: str = option("--host", default="127.0.0.1", help="Address to listen on.")
    port: int = option(
        "--port",
        type=click.IntRange(0, 65535),
        default=8000,
        help="Port to listen on; 0 picks a free one.",
    )
    workers: int = option(
        "--workers",
        type=click.IntRange(1, 256),
        default=1,
        help="Number of HTTP worker processes.",
    )
    api_key_file: str | None = option(
        "--api-key-file", type=AbsolutePath(), help="File of accepted API keys, one per line."
    )
    insecure: bool = option(
        "--insecure",
        is_flag=True,
        default=False,
        help="Allow other machines in without an API key.",
    )
    exit_timeout_seconds: int = option(
        "--exit-timeout-secs",
        type=click.IntRange(0, 86400),
        default=30,
        help="How long open requests may continue after SIGTERM.",
    )
    http: HttpOptions = field(default_factory=HttpOptions)  # from options of their own

    def facts(self) -> dict[str, Any]:
        """All but `insecure`, which allows a start and changes nothing about what is served."""
        facts = asdict(self)
        del facts["insecure"]
        return facts

    def checked(self) -> FrontOptions:
        """These. Raises BlinkError: see `check_access`."""
        key_file = None if self.api_key_file is None else Path(self.api_key_file)
        check_access(self.host, key_file, insecure=self.insecure)
        return self


front_options: Callable[[Callable[..., Any]], Callable[..., Any]] = option_group(
    FrontOptions, "front", FrontOptions.checked
)
"""Gives a command these options, as one argument `front`."""
