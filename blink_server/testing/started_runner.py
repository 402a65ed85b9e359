"""One version's runner, started and spoken to as a server does; for tests of backends."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
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
    argv = backend.runner_command(version, threads=1)
    if argv:
        async with running(argv, version) as runner:
            yield (await runner.loaded(_SECONDS)).endpoint
    else:
        yield (await InWorkers(WantedVersion(version), 1).loaded(_SECONDS)).endpoint


@contextlib.asynccontextmanager
async def running(argv: Sequence[str], version: ModelVersion) -> AsyncIterator[RunnerProcess]:
    """A version's runner, which has not said anything yet and ends with the context."""
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
        started.append(await RunnerProcess.start(WantedVersion(version), 1, argv, runtime))
        yield started[0]
    finally:
        for runner in started:
            await runner.stop(5.0)
        await control.close()
        runtime.close()
        shutil.rmtree(path, ignore_errors=True)
