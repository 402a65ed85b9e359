"""A provisioner's inner parts over real fake runners, for tests of the repository's manager."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from blink_server.backend import ModelVersion
from blink_server.builtin import load_huggingface
from blink_server.catalog import Catalog
from blink_server.config import load_model_config
from blink_server.control_server import ControlServer
from blink_server.messages import CatalogEntry, CatalogUpdate
from blink_server.model_events import ModelStateChange
from blink_server.process import ProcessId
from blink_server.repository.admission import Admission
from blink_server.repository.harness import State
from blink_server.repository.manager import Manager
from blink_server.repository.policy import Generation
from blink_server.repository.surroundings import Limits
from blink_server.repository.wanted import InvalidVersion, WantedSet, WantedVersion
from blink_server.runtime_dir import RuntimeDirectory, open_runtime_directory, read_record
from blink_server.testing.fake_repository import write_fake_version
from blink_server.testing.fake_runner_backend import FakeRunnerBackend

MIB = 1 << 20
FAST = Limits(load=20.0, first_retry=0.02, longest_retry=0.1, kill_grace=5.0)


class Watched(Catalog):
    """A catalog whose every revision can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.revisions: asyncio.Queue[CatalogUpdate] = asyncio.Queue()

    async def _notify(self) -> None:
        if self._update is not None:
            self.revisions.put_nowait(self._update)
        await super()._notify()

    async def until(self, wanted: Callable[[CatalogUpdate], bool]) -> CatalogUpdate:
        """The first revision, from the last one looked at, that is as wanted."""
        async with asyncio.timeout(30):
            while not wanted(update := await self.revisions.get()):
                pass
        return update

    async def entry(self, state: str, *, key: str = "echo:1", epoch: int = 1) -> CatalogEntry:
        """The entry of a version once it is in a state, in its `epoch`-th load or a later one."""

        def find(update: CatalogUpdate) -> list[CatalogEntry]:
            return [
                e
                for e in update.models
                if f"{e.model}:{e.version}" == key and e.state == state and e.epoch >= epoch
            ]

        return find(await self.until(lambda update: bool(find(update))))[0]


@dataclass
class Rig:
    """A provisioner's inner parts over real fake runners.

    `spares`: what is wanted besides while anything that is wanted cannot be loaded.
    """

    path: Path
    runtime: RuntimeDirectory
    catalog: Watched
    manager: Manager
    control: ControlServer
    backend: FakeRunnerBackend
    changes: list[ModelStateChange]
    spares: list[WantedVersion] = field(default_factory=list)
    _wanted: WantedSet = field(default_factory=WantedSet)

    @classmethod
    async def start(cls, path: Path, limits: Limits = FAST, memory: int = 1 << 30) -> Rig:
        """Begin without any model; `memory` bytes are for versions, of which each takes 1 MiB."""
        runtime = open_runtime_directory(path / "run")
        catalog = Watched()
        changes: list[ModelStateChange] = []
        backend = FakeRunnerBackend()
        manager = Manager(
            {"fake": backend},
            catalog,
            runtime,
            limits=limits,
            observe=changes.append,
            tokenizers={"huggingface": load_huggingface},
            admission=Admission(lambda: memory - _in_service(manager) * MIB),
            reselect=lambda broken: rig._reselect(broken),
        )
        control = ControlServer(
            runtime.control_socket,
            on_runner=manager.runner_connected,
            on_worker=catalog.serve_worker,
        )
        rig = cls(path, runtime, catalog, manager, control, backend, changes)
        return rig

    async def apply(self, *wanted: WantedVersion, invalid: tuple[InvalidVersion, ...] = ()) -> None:
        """The first wanted set of a server."""
        await self.manager.inherit()
        self._wanted = WantedSet(wanted, invalid)
        await self.manager.apply(self._wanted)
        if self.control._server is None:
            await self.control.start()

    async def want(self, *wanted: WantedVersion, **more: Any) -> None:
        """A later one."""
        self._wanted = WantedSet(wanted, **more)
        await self.manager.apply(self._wanted)

    async def _reselect(self, broken: Collection[Generation]) -> None:
        """While anything is broken the spares are wanted too."""
        spares = self.spares if broken else []
        valid = [*self._wanted.valid, *spares]
        await self.manager.apply(replace(self._wanted, valid=valid))

    async def close(self) -> None:
        """End everything."""
        await self.manager.close(0.0)
        await self.control.close()
        self.runtime.close()

    async def crash(self) -> None:
        """Leave what a provisioner's crash leaves: its socket gone, its lock free, its runners."""
        await self.control.close()
        self.runtime.release()

    def wanted(self, model: str = "echo", version: int = 1, **options: object) -> WantedVersion:
        """Write a version of the backend `fake`."""
        directory = write_fake_version(self.path / "repository", model, version, **options)
        config = load_model_config(directory)
        return WantedVersion(ModelVersion(model, version, directory, config), ("alias",))

    def runner(self, number: int = 1) -> ProcessId:
        """The `number`-th runner that was started."""
        found = read_record(self.runtime.path / f"runner-{number}" / "runner.json")
        assert found is not None
        return found[0]


def _in_service(manager: Manager) -> int:
    """Versions that have their memory: what loads has its reservation instead."""
    without = (State.LOADING, State.UNAVAILABLE)
    return sum(each.harness.state not in without for each in manager.supervisors)
