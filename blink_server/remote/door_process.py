"""The door as a process: `python -m blink_server.remote.door_process`, started by `serve`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
from pathlib import Path

from blink_server.catalog import Catalog
from blink_server.control_server import first_done
from blink_server.errors import BlinkError
from blink_server.logs import configure_logging
from blink_server.remote.credentials import door_context, open_key_directory
from blink_server.remote.door import Door
from blink_server.remote.door_catalog import DoorCatalog
from blink_server.remote.sessions import Sessions
from blink_server.remote.text_files import TextFiles

log = logging.getLogger(__name__)


async def serve(options: argparse.Namespace) -> None:
    """Let frontends in until SIGTERM. Raises BlinkError."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C is the provisioner's to handle
    credentials = open_key_directory(options.keys)
    catalog, files = Catalog(), TextFiles()
    sessions = Sessions(options.device, options.keep_secs, changed=lambda: follower.look())
    follower = DoorCatalog(options.control_socket, catalog, files, sessions)
    door = Door(credentials.token, catalog, files, sessions)
    await door.start(socket.socket(fileno=options.listener), door_context(options.keys))

    async def until_stopped() -> None:
        await stopping.wait()

    try:
        await first_done(until_stopped(), follower.run())
    finally:
        await door.close()


def main(arguments: list[str] | None = None) -> int:
    """The process."""
    parser = argparse.ArgumentParser(prog="blink_server.remote.door_process")
    parser.add_argument("--listener", type=int, required=True, help="descriptor of the socket")
    parser.add_argument("--keys", type=Path, required=True, help="the credentials' directory")
    parser.add_argument("--control-socket", type=Path, required=True)
    parser.add_argument("--device", required=True, help="this machine's, for agents elsewhere")
    parser.add_argument("--keep-secs", type=float, required=True)
    options = parser.parse_args(arguments)
    configure_logging()
    try:
        asyncio.run(serve(options))
    except BlinkError as error:
        log.critical("the door: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
