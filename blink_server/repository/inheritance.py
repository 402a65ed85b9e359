"""The runners that a provisioner which has died left behind, and which serve on."""

from __future__ import annotations

from collections.abc import Sequence

from blink_server.repository.policy import Generation
from blink_server.repository.runner_process import RunnerProcess
from blink_server.runtime_dir import RuntimeDirectory


async def left_runners(runtime: RuntimeDirectory, kill_grace: float) -> Sequence[RunnerProcess]:
    """Those that live, by epoch: one a generation, the latest. The others are ended.

    `kill_grace`: seconds that they have for that.
    """
    found = [RunnerProcess.take_over(each) for each in runtime.runner_directories()]
    latest: dict[Generation, RunnerProcess] = {}
    for runner in sorted((r for r in found if r is not None), key=lambda r: r.key.epoch):
        if (older := latest.pop(runner.wanted.generation, None)) is not None:
            await older.stop(kill_grace)
        latest[runner.wanted.generation] = runner
    return list(latest.values())
