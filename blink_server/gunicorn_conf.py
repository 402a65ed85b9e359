"""Gunicorn's configuration: read by gunicorn itself, with the values that `serve` decides.

The command line carries what gunicorn knows (workers, bind), the environment the rest.
"""

from __future__ import annotations

import os
from typing import Any

import blink_server.worker  # noqa: F401 (before the fork: workers share it and start at once)
from blink_server.gunicorn_settings import EXIT_TIMEOUT_VARIABLE
from blink_server.http.metrics import worker_exited

worker_class = "asgi"
asgi_loop = "uvloop"
asgi_lifespan = "on"
asgi_disconnect_grace_period = 0  # a client that goes away cancels its request at once
keepalive = 5  # idle connections are what a graceful end waits for
timeout = 60
proc_name = "blink-server"
control_socket_disable = True
accesslog = None
errorlog = "-"
loglevel = "warning"

# Workers end their streams after the grace period themselves, giving their slots back; the arbiter
# kills only those that did not manage to.
_WORKER_GRACE = int(os.environ.get(EXIT_TIMEOUT_VARIABLE, "30"))
graceful_timeout = _WORKER_GRACE + 5


def post_fork(server: Any, worker: Any) -> None:
    """In the new worker: its own, shorter grace period."""
    worker.cfg.set("graceful_timeout", _WORKER_GRACE)


def child_exit(server: Any, worker: Any) -> None:
    """In the arbiter, when a worker has ended: its live gauges go."""
    worker_exited(worker.pid)
