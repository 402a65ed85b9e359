"""The options of commands that serve, for their logs; and `blink-server log-level`."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from blink_server.control_client import ask
from blink_server.errors import BlinkError
from blink_server.logs import FORM_VARIABLE, FORMS, LEVEL_VARIABLE, LEVELS, configure_logging
from blink_server.models_table import control_socket, runtime_option


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--log-level` and `--log-format`, and do as they say before it begins."""

    @click.option(
        "--log-level",
        type=click.Choice(LEVELS),
        default="info",
        show_default=True,
        help="Lowest level to log.",
    )
    @click.option(
        "--log-format",
        type=click.Choice(FORMS),
        default="human",
        show_default=True,
        help="Format of log lines.",
    )
    @functools.wraps(command)
    def with_options(*, log_level: str, log_format: str, **others: Any) -> Any:
        os.environ.update({LEVEL_VARIABLE: log_level, FORM_VARIABLE: log_format})
        configure_logging()
        return command(**others)

    return with_options


@click.command("log-level")
@click.argument("level", type=click.Choice(LEVELS))
@runtime_option
def log_level_command(level: str, runtime_dir: Path | None) -> None:
    """Set the log level of a running server, in all its processes."""
    answer = asyncio.run(ask(control_socket(runtime_dir), "log_level", level=level))
    if answer.outcome != "done":
        raise BlinkError(answer.error)
    click.echo(f"the server logs from {level} up")
