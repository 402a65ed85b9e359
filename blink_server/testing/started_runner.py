"""One version's runner, started and spoken to as a server does; for tests of backends."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from blink_server.backend import Backend, Endpoint, ModelVersion
from blink_server.control_server import ControlServer, Peer
from blink_server.messages import RegisterRunner, RegisterWorker
from blink_server.repository.in_workers import InWorkers
from blink_server.repository.runner_process import RunnerProcess
from blink_server.repository.wanted import WantedVersion
from blink_server.runtime_dir import open_runtime_directory

_SECONDS = 60.0


@contextlib.asynccontextmanager
async def started_runner(backend: Backend, version: ModelVersion) -> AsyncIterator[Endpoint]:
    """The endpoint of a version in service, whose runner ends with the context.

    Raises LoadError where it does not come into service.
    """
    wanted = WantedVersion(version)
    argv = backend.runner_command(version, threads=1)
    if not argv:
        yield (await InWorkers(wanted, 1).loaded(_SECONDS)).endpoint
        return
    # A short path: it must leave room for the names of sockets.
    path = Path(tempfile.mkdtemp(prefix="blink-"))
    runtime = open_runtime_directory(path)
    started: list[RunnerProcess] = []

    async def serve(peer: Peer, registration: RegisterRunner) -> None:
        await started[0].serve(peer)

    async def refuse(peer: Peer, registration: RegisterWorker) -> None:
        raise AssertionError("there are no workers here")

    control = ControlServer(runtime.control_socket, on_runner=serve, on_worker=refuse)
    try:
        await control.start()
        started.append(await RunnerProcess.start(wanted, 1, argv, runtime))
        yield (await started[0].loaded(_SECONDS)).endpoint
    finally:
        for runner in started:
            await runner.stop(5.0)
        await control.close()
        runtime.close()
        shutil.rmtree(path, ignore_errors=True)
