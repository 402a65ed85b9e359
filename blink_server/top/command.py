"""The command `blink-server top`."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live

from blink_server.api_keys import read_api_keys
from blink_server.errors import BlinkError
from blink_server.top.picture import picture
from blink_server.top.watch import Watch

_REFRESH_SECONDS = 0.25
_ANSWER_SECONDS = 10.0
_SAMPLE_SECONDS = 1.0  # what rates of a single frame are taken over


@click.command("top")
@click.option(
    "--url", default="http://127.0.0.1:8000", show_default=True, help="URL of the server."
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path),
    help="File whose first key is sent if the server requires one.",
)
@click.option(
    "--model", "models", multiple=True, help="Show only this model in detail; repeatable."
)
@click.option("--once", is_flag=True, help="Watch for one second, print one frame and exit.")
def top_command(url: str, api_key_file: Path | None, models: tuple[str, ...], once: bool) -> None:
    """Watch a server's models, ring, scheduler, graphs and latencies; press q to quit."""
    key = None if api_key_file is None else read_api_keys(api_key_file)[0]
    console = Console()
    if not once and not (console.is_terminal and sys.stdin.isatty()):
        raise BlinkError("top needs a terminal; --once prints one frame without")
    watch, ended = Watch(url), threading.Event()
    follower = threading.Thread(target=watch.follow, args=(key, ended), daemon=True)
    follower.start()
    try:
        if once:
            _print_once(watch, console, models)
        else:
            _show(watch, console, models, follower)
    finally:
        ended.set()


def _print_once(watch: Watch, console: Console, models: tuple[str, ...]) -> None:
    watch.answered.wait(_ANSWER_SECONDS)
    if not watch.state:
        raise BlinkError(watch.trouble or f"{watch.url} does not answer")
    threading.Event().wait(_SAMPLE_SECONDS)
    console.print(picture(watch, console.width, models))


def _show(
    watch: Watch, console: Console, models: tuple[str, ...], follower: threading.Thread
) -> None:
    with (
        contextlib.suppress(KeyboardInterrupt),
        _single_keys() as keys,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while follower.is_alive() and not _quit(keys):
            live.update(picture(watch, console.width, models), refresh=True)
    if not follower.is_alive():
        raise BlinkError(watch.trouble)


@contextlib.contextmanager
def _single_keys() -> Iterator[int]:
    """Standard input's descriptor, which gives keys without waiting for the line's end."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _quit(keys: int) -> bool:
    """Wait for the next frame's time or a key; whether that was q, or the terminal has gone."""
    readable, _, _ = select.select([keys], [], [], _REFRESH_SECONDS)
    return bool(readable) and ((pressed := os.read(keys, 64)) == b"" or b"q" in pressed.lower())
