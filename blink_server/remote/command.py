"""`blink-server frontend`: checks what it was asked for, then runs the frontend."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import click

from blink_server.front_options import FrontOptions, front_options
from blink_server.gunicorn_settings import LOAD_TIMEOUT_VARIABLE
from blink_server.http_options import HttpOptions, http_options
from blink_server.listener import url_of
from blink_server.log_options import log_options
from blink_server.plugin_choice import PluginChoice, plugin_options
from blink_server.plugins import load_plugins
from blink_server.remote.credentials import read_token_file
from blink_server.remote.door_options import split_address
from blink_server.remote.frontend import Frontend, FrontendOptions

_CACHE = Path("~/.cache/blink-server/text")


@click.command("frontend")
@click.option(
    "--connect",
    metavar="HOST:PORT",
    required=True,
    help="Address of the host's --frontends-listen.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    required=True,
    help="Copy of the file `token` from the host's --frontends-key-dir.",
)
@click.option("--transport", default="rdma", show_default=True, help="How to reach the rings.")
@click.option("--device", required=True, help="RDMA device of this machine, such as mlx5_0.")
@front_options
@click.option(
    "--load-timeout-secs",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Time limit for loading a version's tokenizer.",
)
@click.option(
    "--cache-dir",
    type=click.Path(path_type=Path),
    default=_CACHE,
    show_default=True,
    help="Cache for the tokenizers and chat templates of the host's models.",
)
@click.option(
    "--runtime-dir", type=click.Path(path_type=Path), help="Private directory for sockets."
)
@plugin_options
@log_options
@http_options
def frontend_command(
    connect: str,
    token_file: Path,
    transport: str,
    device: str,
    front: FrontOptions,
    load_timeout_secs: float,
    cache_dir: Path,
    runtime_dir: Path | None,
    plugin_choice: PluginChoice,
    http: HttpOptions,
) -> None:
    """Serve another machine's models over HTTP, for example from a DPU."""
    os.environ[LOAD_TIMEOUT_VARIABLE] = str(load_timeout_secs)
    os.environ.update(plugin_choice.variables())  # for workers
    door_host, door_port = split_address(connect, "--connect")
    options = FrontendOptions(
        host=door_host,
        port=door_port,
        credentials=read_token_file(token_file),
        transport=transport,
        device=device,
        front=replace(front, http=http),
        cache=cache_dir.expanduser().absolute(),
        runtime_directory=runtime_dir,
    )
    asyncio.run(_run(options))


async def _run(options: FrontendOptions) -> None:
    await Frontend(options, load_plugins(), announce=_print_summary).run()


def _print_summary(frontend: Frontend) -> None:
    front = frontend.front
    url = url_of(*front.address, scheme=front.options.http.scheme)
    click.echo(f"Blink frontend on {url}")
    names = [f"{entry.model}:{entry.version}" for entry in frontend.models]
    width = max(map(len, names), default=0)
    for name, entry in zip(names, frontend.models, strict=True):
        state = f"{entry.state}: {entry.reason}" if entry.reason else entry.state
        click.echo(f"  {name:{width}}  {state}")
