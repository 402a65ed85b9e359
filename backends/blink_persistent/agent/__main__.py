"""The agent process: `python -m blink_persistent.agent --runner SOCKET --serve SOCKET`.

It attaches to the runner's offer, takes back what an earlier agent left in the ring, and leases
the mirror to workers as a runner would. It prints one JSON line once they may connect:
{"type": "serving", "socket": path}. It ends when the runner is gone, or on SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
from pathlib import Path

from blink_persistent.agent.agent import Agent
from blink_persistent.agent.attach import attach, open_port
from blink_persistent.agent.port import PortLost
from blink_persistent.agent.reconnection import reconnect
from blink_persistent.lines import LineSocket
from blink_server.errors import BlinkError
from blink_server.runner_main import begin_process

log = logging.getLogger(__name__)


def serve(runner: str, socket_path: Path, stop: int) -> None:
    """Serve until `stop` is readable or the runner is gone. Raises BlinkError."""
    with contextlib.ExitStack() as held:
        link, offer, descriptors = attach(runner)
        held.callback(link.close)
        for fd in descriptors:
            held.callback(os.close, fd)
        port = open_port(offer, descriptors, link)
        # The runner admits one agent at a time, so a socket that is there is a dead one's.
        socket_path.unlink(missing_ok=True)

        def say() -> None:
            print(json.dumps({"type": "serving", "socket": str(socket_path)}), flush=True)

        agent = Agent(port, socket_path, offer["limits"], on_serving=say)
        try:
            _serve(agent, link, stop, resumable_seconds=offer.get("resumable_seconds", 0.0))
        finally:
            agent.close()
            with contextlib.suppress(OSError):  # the runner is gone: it needs not be told
                link.send({"type": "detach"})


def _serve(agent: Agent, link: LineSocket, stop: int, *, resumable_seconds: float) -> None:
    while True:
        try:
            heard = agent.run([stop, link.fileno()])
            if stop in heard:
                return
            for message in link.messages():
                if message.get("type") == "flush":
                    agent.flush()
                    link.send({"type": "flushed", "number": message.get("number")})
            if link.ended:
                log.info("the runner is gone")
                return
        except PortLost as lost:
            if not reconnect(agent, link, lost, stop=stop, seconds=resumable_seconds):
                return


def main(arguments: list[str] | None = None) -> int:
    """The process."""
    parser = argparse.ArgumentParser(prog="blink_persistent.agent")
    parser.add_argument("--runner", required=True, help="socket of the runner's offer")
    parser.add_argument("--serve", type=Path, required=True, help="socket for the workers")
    options = parser.parse_args(arguments)
    stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    begin_process(lambda: os.eventfd_write(stop, 1))
    try:
        serve(options.runner, options.serve, stop)
    except BlinkError as error:
        log.critical("%s", error)  # the last line: whoever started it shows it as the reason
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
