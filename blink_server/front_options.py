"""The options of commands that listen for HTTP: where, by how many workers, and for whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = [
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True),
    click.option(
        "--workers",
        type=click.IntRange(1, 256),
        default=1,
        show_default=True,
        help="HTTP worker processes.",
    ),
    click.option(
        "--api-key-file",
        type=click.Path(path_type=Path),
        help="File with the API keys that requests may use, one a line.",
    ),
    click.option("--insecure", is_flag=True, help="Let other machines in without an API key."),
    click.option(
        "--exit-timeout-secs",
        type=click.IntRange(0, 86400),
        default=30,
        show_default=True,
        help="How long open requests may go on after SIGTERM.",
    ),
]


def front_options(command: Command) -> Command:
    """Give a command these options, an argument each."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
