"""The steps of one load: memory, process, readiness, warm-up; or the return of a living runner."""

from __future__ import annotations

import asyncio

from blink_server.aside import aside
from blink_server.backend import Backend
from blink_server.messages import Ready
from blink_server.repository.in_workers import InWorkers
from blink_server.repository.runner_process import (
    LoadError,
    LoadTimeoutError,
    MemoryRefusedError,
    RunnerProcess,
)
from blink_server.repository.surroundings import Surroundings
from blink_server.repository.wanted import WantedVersion
from blink_server.repository.warm_up import warm_up

Runner = RunnerProcess | InWorkers

TAKE_OVER_SECONDS = 10.0  # a living runner registers again within a second or two


async def start_runner(
    wanted: WantedVersion, epoch: int, backend: Backend, around: Surroundings
) -> Runner:
    """Start a runner, if its estimate fits into memory.

    Raises MemoryRefusedError, BlinkError, LoadTimeoutError where the backend does not answer.
    """
    version, seconds = wanted.version, around.limits.load
    try:
        async with asyncio.timeout(seconds):
            estimate = await aside(backend.estimate, version)
            if refusal := around.admission.admit(wanted.generation, estimate):
                raise MemoryRefusedError(refusal)
            threads = around.threads(version)
            argv = await aside(backend.runner_command, version, threads=threads)
    except TimeoutError:
        raise LoadTimeoutError(
            f"the backend {backend.name!r} has not answered after {seconds:g} s"
        ) from None
    if not argv:
        return InWorkers(wanted, epoch)
    return await RunnerProcess.start(wanted, epoch, argv, around.runtime)


async def warmed_up(
    runner: Runner, wanted: WantedVersion, backend: Backend, around: Surroundings
) -> Ready:
    """Wait until the runner is ready and has answered the warm-up requests. Raises LoadError."""
    loop, seconds = asyncio.get_running_loop(), around.limits.load
    deadline = loop.time() + seconds
    ready = await runner.loaded(seconds)
    try:
        async with asyncio.timeout_at(deadline):
            await warm_up(wanted.version, ready.endpoint, backend, around.tokenizers)
    except TimeoutError:
        raise LoadTimeoutError(f"not warmed up after {seconds:g} s") from None
    return ready


async def registered(runner: RunnerProcess) -> Ready | None:
    """What a predecessor's runner says when it has found this server; None where it still loads.

    Raises LoadError where it stays silent.
    """
    try:
        return await runner.loaded(TAKE_OVER_SECONDS)
    except LoadTimeoutError:
        if not runner.registered.is_set():
            raise LoadError("the server before left a runner that is silent") from None
        return None
