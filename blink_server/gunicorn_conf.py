"""Gunicorn's configuration: read by gunicorn itself, with the values that `serve` decides.

The command line carries what gunicorn knows (workers, bind), the environment the rest.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import blink_server.worker  # noqa: F401 (before the fork: workers share it and start at once)
from blink_server.gunicorn_settings import EXIT_TIMEOUT_VARIABLE, METRICS_VARIABLE
from blink_server.http.shared_metrics import fold_worker

logger_class = "blink_server.gunicorn_log.GunicornLog"
worker_class = "blink_server.connections.Worker"
asgi_loop = "uvloop"
asgi_lifespan = "on"
asgi_disconnect_grace_period = 0  # a client that goes away cancels its request at once
keepalive = 5
timeout = 60
proc_name = "blink-server"
control_socket_disable = True
accesslog = None
errorlog = "-"
loglevel = "warning"

# At the exit timeout the provisioner has the workers end their streams with a word to the client.
# A worker without a provisioner cuts them off a little later; the arbiter kills only those workers
# that did not manage to give their slots back.
_WORKER_GRACE = int(os.environ.get(EXIT_TIMEOUT_VARIABLE, "30")) + 3
graceful_timeout = _WORKER_GRACE + 4


def post_fork(server: Any, worker: Any) -> None:
    """In the new worker: its own, shorter grace period."""
    worker.cfg.set("graceful_timeout", _WORKER_GRACE)


def child_exit(server: Any, worker: Any) -> None:
    """In the arbiter, when a worker has ended: its counts stay in the sums."""
    fold_worker(Path(os.environ[METRICS_VARIABLE]), worker.pid)
