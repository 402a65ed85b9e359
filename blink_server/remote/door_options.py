"""The options of `serve` that concern frontends on other machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from blink_server.errors import BlinkError
from blink_server.option_group import AbsolutePath, option, option_group
from blink_server.remote.credentials import door_context, open_key_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorOptions:
    """What decides how frontends are let in; a successor takes a door over only if all is equal.

    A session whose connection was lost is kept for `keep_seconds`. `gpudirect`: agents elsewhere
    may reach into a GPU's memory.
    """

    listen: str | None = option(
        "--frontends-listen",
        default=None,
        metavar="HOST:PORT",
        help="Accept frontends on other machines at this address, over TLS; see docs/dpu.md.",
    )
    keys: str = option(
        "--frontends-key-dir",
        default="",
        type=AbsolutePath(),
        help="Directory of the frontends' certificate and token; created if missing.",
    )
    device: str = option(
        "--frontends-device",
        default="",
        help="RDMA device of this machine that frontends use, such as mlx5_0.",
    )
    keep_seconds: float = option(
        "--frontends-keep-secs",
        type=click.FloatRange(0, 3600),
        default=30.0,
        help="How long a frontend that has gone silent keeps its slots.",
    )
    gpudirect: bool = option(
        "--frontends-gpudirect/--no-frontends-gpudirect",
        default=True,
        help="Let frontends access GPU memory directly where network cards can; otherwise they go "
        "through this host's agent.",
    )

    @property
    def address(self) -> tuple[str, int]:
        """(host, port), where frontends are to be let in. Raises BlinkError."""
        assert self.listen is not None
        return split_address(self.listen, "--frontends-listen")

    def checked(self) -> DoorOptions | None:
        """These, with the key directory made; None where no frontends are to be let in.

        Raises BlinkError naming what is missing or cannot be used.
        """
        if self.listen is None:
            return None
        if not self.keys or not self.device:
            raise BlinkError("--frontends-listen needs --frontends-key-dir and --frontends-device")
        _ = self.address
        open_key_directory(Path(self.keys))
        door_context(Path(self.keys))
        return self


door_options: Callable[[Callable[..., Any]], Callable[..., Any]] = option_group(
    DoorOptions, "door", DoorOptions.checked
)
"""Gives a command these options, as one argument `door` of type `DoorOptions | None`."""


def split_address(text: str, option: str) -> tuple[str, int]:
    """(host, port) of "host:port" or "[host]:port". Raises BlinkError naming the option."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise BlinkError(f"{option} {text}: must be host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
