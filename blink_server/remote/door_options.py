"""The options of `serve` that concern frontends on other machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from blink_server.errors import BlinkError
from blink_server.remote.credentials import door_context, open_key_directory
from blink_server.remote.door_keeper import DoorOptions

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = [
    click.option(
        "--frontends-listen",
        metavar="HOST:PORT",
        help="Accept frontends on other machines at this address, over TLS; see docs/dpu.md.",
    ),
    click.option(
        "--frontends-key-dir",
        type=click.Path(path_type=Path),
        help="Directory of the frontends' certificate and token; created if missing.",
    ),
    click.option(
        "--frontends-device", help="RDMA device of this machine that frontends use, such as mlx5_0."
    ),
    click.option(
        "--frontends-keep-secs",
        type=click.FloatRange(0, 3600),
        default=30.0,
        show_default=True,
        help="How long a frontend that has gone silent keeps its slots.",
    ),
    click.option(
        "--frontends-gpudirect/--no-frontends-gpudirect",
        default=True,
        show_default=True,
        help="Let frontends access GPU memory directly where network cards can; otherwise they go "
        "through this host's agent.",
    ),
]


def split_address(text: str, option: str) -> tuple[str, int]:
    """(host, port) of "host:port" or "[host]:port". Raises BlinkError naming the option."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise BlinkError(f"{option} {text}: must be host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def door_options(command: Command) -> Command:
    """Give a command these options, as one argument `door` of type `DoorOptions | None`."""

    def with_options(
        *,
        frontends_listen: str | None,
        frontends_key_dir: Path | None,
        frontends_device: str | None,
        frontends_keep_secs: float,
        frontends_gpudirect: bool,
        **others: Any,
    ) -> Any:
        door = None
        if frontends_listen is not None:
            if frontends_key_dir is None or frontends_device is None:
                raise BlinkError(
                    "--frontends-listen needs --frontends-key-dir and --frontends-device"
                )
            host, port = split_address(frontends_listen, "--frontends-listen")
            keys = frontends_key_dir.absolute()
            open_key_directory(keys)
            door_context(keys)
            door = DoorOptions(
                *(host, port, str(keys), frontends_device, frontends_keep_secs, frontends_gpudirect)
            )
        return command(door=door, **others)

    with_options.__doc__ = command.__doc__
    with_options.__name__ = command.__name__
    # click's decorators collect options on the function they are applied to.
    with_options.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Any = with_options
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    result: Command = decorated
    return result
