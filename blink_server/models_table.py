"""`blink-server models` and its load and unload: a running server's models, from its machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from blink_server.control_client import ask
from blink_server.errors import BlinkError
from blink_server.messages import Answer
from blink_server.model_rows import ModelRow, from_columns
from blink_server.runtime_dir import find_control_sockets
from blink_server.tables import cell, printable, show, table

_REFRESH_SECONDS = 1.0
_STYLES = {"READY": "green", "UNAVAILABLE": "red", "LOADING": "yellow", "DRAINING": "yellow"}

runtime_option = click.option(
    "--runtime-dir",
    type=click.Path(path_type=Path),
    help="Runtime directory of the server; needed if several run.",
)


def control_socket(runtime_dir: Path | None) -> Path:
    """The control socket of the server meant. Raises BlinkError where that is not one server."""
    if runtime_dir is not None:
        return runtime_dir / "control.sock"
    found = find_control_sockets()
    if not found:
        raise BlinkError(
            "no server of this user has its runtime directory in the default place; --runtime-dir "
            "names another's: .run/runtime after `make demo`"
        )
    if len(found) > 1:
        places = ", ".join(str(socket.parent) for socket in found)
        raise BlinkError(f"several servers run: give --runtime-dir, one of {places}")
    return found[0]


def show_models(runtime_dir: Path | None, *, watch: bool, as_json: bool) -> None:
    """Print the table, or JSON; with `watch` until Ctrl-C."""
    socket = control_socket(runtime_dir)
    with contextlib.suppress(KeyboardInterrupt) if watch else contextlib.nullcontext():
        if as_json:
            _print_json(socket, watch=watch)
        elif watch:
            _show_live(socket)
        else:
            show(*picture(_rows(socket)))


def _print_json(socket: Path, *, watch: bool) -> None:
    while True:
        click.echo(json.dumps([asdict(row) for row in _rows(socket)]))
        if not watch:
            return
        time.sleep(_REFRESH_SECONDS)


def _show_live(socket: Path) -> None:
    with Live(Group(*picture(_rows(socket))), auto_refresh=False, screen=False) as live:
        while True:
            time.sleep(_REFRESH_SECONDS)
            live.update(Group(*picture(_rows(socket))), refresh=True)


def _rows(socket: Path) -> Sequence[ModelRow]:
    return from_columns(asyncio.run(ask(socket, "index", usage=True)).rows)


def picture(rows: Sequence[ModelRow]) -> Sequence[Table | Text]:
    """The table, and below it the reasons, which have whole lines for themselves."""
    shown = table(
        *("model", "version", "state", "since", "requests", "loaded in"),
        whole=("state", "since", "requests", "loaded in"),
    )
    reasons: list[Text] = []
    for row in rows:
        style = _STYLES.get(row.state, "default")
        shown.add_row(
            cell(row.model),
            cell(row.version or "-"),
            cell(row.state, style),
            cell(_since(row.since)),
            cell(row.requests),
            cell(f"{row.load_seconds:.1f} s" if row.load_seconds else "-"),
        )
        if row.reason:
            name = f"{row.model}:{row.version}" if row.version else row.model
            reasons.append(Text.assemble((printable(name), style), f": {printable(row.reason)}"))
    return [shown, *reasons]


def _since(seconds: float) -> str:
    """The time of day; of another day than this one with the date."""
    if not seconds:
        return "-"
    then = time.localtime(seconds)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%T" if today else "%F %H:%M", then)


@click.command("load")
@click.argument("model")
@click.option("--config", help="JSON object that overrides fields of each version's config.json.")
@click.option("--force", is_flag=True, help="Load even if nothing has changed.")
@runtime_option
def load_command(model: str, config: str | None, force: bool, runtime_dir: Path | None) -> None:
    """Load MODEL, or what has changed in it; the server must run --model-control explicit."""
    _done("load", runtime_dir, model=model, config=_parsed(config), force=force)
    click.echo(f"{model} is loaded")


@click.command("unload")
@click.argument("model")
@runtime_option
def unload_command(model: str, runtime_dir: Path | None) -> None:
    """Unload MODEL once its requests have ended; the server must run --model-control explicit."""
    _done("unload", runtime_dir, model=model)
    click.echo(f"{model} gets no more requests")


def _parsed(config: str | None) -> Any:
    if config is None:
        return None
    try:
        parsed = json.loads(config)
    except ValueError as error:
        raise BlinkError(f"--config is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise BlinkError("--config must be a JSON object")
    return parsed


def _done(action: Literal["load", "unload"], runtime_dir: Path | None, **fields: Any) -> Answer:
    answer = asyncio.run(ask(control_socket(runtime_dir), action, **fields))
    if answer.outcome != "done":
        raise BlinkError(answer.error)
    return answer
