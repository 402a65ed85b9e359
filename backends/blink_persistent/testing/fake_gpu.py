"""A process that owns a GPU which is none: the scripted engine on the CPU, in the same processes.

`python -m blink_persistent.testing.fake_gpu`, started in the place of `blink_persistent.gpu_runner`
by `FakeGpuBackend`. A version's engine options may also hold fail: "load", "serve" or "gpu", and
after_tokens: how many tokens it generates before it fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from blink_persistent.backend import PersistentBackend
from blink_persistent.engines.scripted import ScriptedOptions, ScriptedProvisioned
from blink_persistent.gpu_runner.owner import main
from blink_persistent.gpu_runner.service import GpuLost, Service, Task
from blink_persistent.graph_grid import GraphGrid
from blink_persistent.runner import Runner
from blink_persistent.serving import is_drained
from blink_server.backend import Endpoint, ModelVersion
from blink_server.config import load_graph_grid
from blink_server.errors import EngineFailure, MemoryRefused, Problem
from blink_server.json_file import read_json

STAGES = 4


class FakeGpuBackend(PersistentBackend):
    """As `PersistentBackend`, but that every version is on the GPU that is none."""

    name = "fake_gpu"

    def check(self, version: ModelVersion) -> Sequence[Problem]:
        """Nothing is checked."""
        return []

    def estimate(self, version: ModelVersion) -> int:
        """Little."""
        return 1 << 20

    def runner_command(self, version: ModelVersion, *, threads: int) -> Sequence[str]:
        """The link, to an owner of this module."""
        link = ("-m", "blink_persistent.gpu_runner.link", "--device", "0")
        return [sys.executable, *link, "--threads", str(threads), "--owner", __name__]


class FakeService:
    """A runner's ring and scheduler, in the owner's process."""

    check_seconds = 0.02
    memory_bytes = 1 << 20

    def __init__(self, task: Task, options: dict[str, Any]) -> None:
        environment = task.environment
        self._fail, self._after = options.pop("fail", ""), options.pop("after_tokens", 0)
        config = read_json(environment.config_file)
        version = ModelVersion(
            environment.model, environment.version, environment.version_directory, config
        )
        grid = GraphGrid.from_json(load_graph_grid(version.directory))
        provisioned = ScriptedProvisioned(version, grid, ScriptedOptions(**options))
        self._runner = Runner(version, provisioned, environment.epoch)
        socket_path = environment.runtime_directory / "ring.sock"
        self.endpoint = Endpoint("shm", {"socket": str(socket_path)})
        self._runner.serve(socket_path)

    def check(self) -> None:
        """Fails as the version's options ask for, once it has generated enough."""
        if self._runner.ring.field("generated_tokens") < self._after:
            return
        if self._fail == "serve":
            raise EngineFailure("the scripted failure of this version")
        if self._fail == "gpu":
            raise GpuLost("the scripted end of this GPU")

    def close_ring(self) -> None:
        """See `Service`."""
        self._runner.close_ring()

    def is_drained(self) -> bool:
        """See `Service`."""
        return is_drained(self._runner.ring)

    def stop(self) -> None:
        """What stops is given back at once."""
        self._runner.close()

    def close(self) -> None:
        """Nothing is left to give back."""


def make_service(task: Task, progress: Callable[[str, float], None]) -> Service:
    """See `MakeService`."""
    options = dict(read_json(task.environment.config_file)["engine"])
    del options["name"]
    for stage in range(STAGES):
        progress("pretence", stage / STAGES)
    if options.get("fail") == "load":
        raise MemoryRefused("memory: the scripted refusal of this version")
    return FakeService(task, options)


if __name__ == "__main__":
    sys.exit(main(make_service))
