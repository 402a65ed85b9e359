"""How a process begins and ends that the provisioner starts for a backend."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

from blink_server.control import RunnerChannel
from blink_server.errors import BlinkError, MemoryRefused
from blink_server.logs import RUNNER_FORMAT

log = logging.getLogger(__name__)


def run_runner(serve: Callable[[RunnerChannel], int]) -> int:
    """Have `serve` load and serve the version; the process's exit status, which is what it returns.

    For the main thread of the process that `Backend.runner_command` names:

        if __name__ == "__main__":
            sys.exit(run_runner(serve))

    `serve` is given a channel that has been started, says `ready` on it and stays until `commands`
    gives a `Drain` or a `Stop`, or ends, which SIGTERM makes it do. SIGINT is ignored. What is
    logged from INFO up goes to standard error, and from there to the server's log.

    A BlinkError that `serve` raises is told to the provisioner as the reason why the version cannot
    be loaded (a MemoryRefused: for lack of memory), and the status is 1. What else it raises is
    raised here; the provisioner takes the last line of the traceback for the reason. The channel is
    closed in any case. Raises BlinkError in a process that no server has started.
    """
    channel = RunnerChannel.from_environment()
    begin_process(channel.close)  # ends the wait for commands
    channel.start()
    try:
        return serve(channel)
    except BlinkError as error:
        log.error("cannot serve: %s", error)
        channel.failed(str(error), memory=isinstance(error, MemoryRefused))
        return 1
    finally:
        channel.close()


def begin_process(leave: Callable[[], None]) -> None:
    """Log as the provisioner reads it, leave Ctrl-C to it, and call `leave` at SIGTERM.

    On the main thread, which `leave` interrupts wherever it is: it may take no lock.
    """
    logging.basicConfig(level=logging.INFO, format=RUNNER_FORMAT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _number, _frame: leave())
