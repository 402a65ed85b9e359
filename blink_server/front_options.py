"""The options of commands that listen for HTTP: where, by how many workers, and for whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = [
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=8000,
        show_default=True,
        help="Port to listen on; 0 picks a free one.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(1, 256),
        default=1,
        show_default=True,
        help="Number of HTTP worker processes.",
    ),
    click.option(
        "--api-key-file",
        type=click.Path(path_type=Path),
        help="File of accepted API keys, one per line.",
    ),
    click.option("--insecure", is_flag=True, help="Allow other machines in without an API key."),
    click.option(
        "--exit-timeout-secs",
        type=click.IntRange(0, 86400),
        default=30,
        show_default=True,
        help="How long open requests may continue after SIGTERM.",
    ),
]


def front_options(command: Command) -> Command:
    """Give a command these options, an argument each."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
