"""A version's link to the process that owns its GPU: what the provisioner takes for its runner.

    python -m blink_persistent.gpu_runner.link --device N --threads N

It imports nothing of CUDA. Its connection is the version's life: the owner gives the version up
when it ends, and this process ends, with the reason as its last line, when the owner has. JSON
lines go over the connection:

    owner -> link  {"type": "hello", "pid": n}
    link -> owner  {"type": "load", "environment": {...}, "threads": n, "scheduler": kind or null,
                   "host_ranges": n or null}
    owner -> link  {"type": "progress", "stage": s, "fraction": x}, {"type": "log", "line": s}
    owner -> link  {"type": "ready", "transport": t, "address": {...}, "memory_bytes": n}
    link -> owner  {"type": "drain", "seconds": x}, {"type": "stop"}
    owner -> link  {"type": "failed", "reason": s, "memory": bool}: the version can be served no
                   longer; not be loaded, for lack of memory
    owner -> link  {"type": "dying", "reason": s}: nor can any other of this GPU
    owner -> link  {"type": "ended", "leaving": bool}: all of it is given back; the owner, too, goes
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import sys
import threading
from collections.abc import Mapping
from typing import Any

from blink_persistent.gpu_runner.reach import OWNER_MODULE, GpuFiles, last_words, reach
from blink_server.backend import Endpoint
from blink_server.control import HOST_RANGES_VARIABLE, SCHEDULER_VARIABLE, RunnerChannel
from blink_server.messages import Drain
from blink_server.runner_main import run_runner

log = logging.getLogger(__name__)

_LEAVE_SECONDS = 10.0  # of an owner that has given everything back


class VersionLink:
    """Between the provisioner's channel and the owner of the GPU."""

    def __init__(self, channel: RunnerChannel, files: GpuFiles, *, owner_module: str) -> None:
        """Raises BlinkError where the owner cannot be reached."""
        self._channel = channel
        self._files = files
        self._link, pid = reach(files, owner_module)
        self._owner = os.pidfd_open(pid)
        self._ready = False
        self._reason = ""
        self._memory = False

    def run(self, threads: int) -> int:
        """Have the version served until told to stop; the exit status."""
        environment = self._channel.environment.variables()
        ranges = os.environ.get(HOST_RANGES_VARIABLE)
        self._send(
            type="load",
            environment=environment,
            threads=threads,
            scheduler=os.environ.get(SCHEDULER_VARIABLE),
            host_ranges=int(ranges) if ranges else None,
        )
        threading.Thread(target=self._forward_commands, name="commands", daemon=True).start()
        ended = self._relay()
        if not ended:
            words = last_words(self._files)
            self._reason = self._reason or (
                f"the process of GPU {self._files.device} has ended"
                + (f": {words}" if words else "")
            )
        if not self._reason:
            return 0
        log.critical("%s", self._reason)  # the last line: the supervisor shows it as the reason
        if not self._ready:
            self._channel.failed(self._reason, memory=self._memory)
        return 1

    def _relay(self) -> bool:
        """Tell the provisioner what the owner says; whether that was its last word on this."""
        while not self._link.ended:
            for message in self._link.messages():
                if message.get("type") == "ended":
                    if message["leaving"]:
                        select.select([self._owner], [], [], _LEAVE_SECONDS)
                    return True
                self._hear(message)
                if self._ready and self._reason:
                    return True
        return False

    def _hear(self, message: Mapping[str, Any]) -> None:
        kind = message.get("type")
        if kind == "log":
            print(message["line"], file=sys.stderr, flush=True)
        elif kind == "progress":
            self._channel.progress(message["stage"], message["fraction"])
        elif kind == "ready":
            self._ready = True
            endpoint = Endpoint(message["transport"], message["address"])
            self._channel.ready(endpoint, message["memory_bytes"])
        elif kind in ("failed", "dying"):
            self._reason, self._memory = message["reason"], message.get("memory", False)

    def _forward_commands(self) -> None:
        for command in self._channel.commands():
            if isinstance(command, Drain):
                self._send(type="drain", seconds=command.deadline_seconds)
            else:
                break
        self._send(type="stop")

    def _send(self, **message: object) -> None:
        with contextlib.suppress(OSError):  # the reading side sees the same end
            self._link.send(message)


def main(arguments: list[str] | None = None) -> int:
    """The process."""
    parser = argparse.ArgumentParser(prog="blink_persistent.gpu_runner.link")
    parser.add_argument("--device", type=int, required=True, help="number of the GPU")
    parser.add_argument("--threads", type=int, required=True, help="CPU threads of the engine")
    parser.add_argument("--owner", default=OWNER_MODULE, help="module that owns the GPU")
    options = parser.parse_args(arguments)

    def serve(channel: RunnerChannel) -> int:
        # The owner is shared by all versions of one server, whose folder holds the control socket.
        files = GpuFiles(channel.environment.control_socket.parent, options.device)
        return VersionLink(channel, files, owner_module=options.owner).run(options.threads)

    return run_runner(serve)


if __name__ == "__main__":
    sys.exit(main())
