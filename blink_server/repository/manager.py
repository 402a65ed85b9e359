"""Makes what runs what the repository wants, and publishes the result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace

from blink_server.backend import Backend, ModelVersion
from blink_server.catalog import Catalog, ServerState
from blink_server.control_server import Peer
from blink_server.hookspecs import TokenizerLoader
from blink_server.messages import EndpointKey, RegisterRunner, Stop
from blink_server.model_events import ModelStateChange
from blink_server.repository.admission import Admission
from blink_server.repository.cpu_threads import cpu_threads, usable_cores
from blink_server.repository.entries import catalog_entries
from blink_server.repository.harness import Harness, State
from blink_server.repository.inheritance import left_runners
from blink_server.repository.policy import Generation, Load, VersionKey, next_actions
from blink_server.repository.runner_process import RunnerProcess
from blink_server.repository.supervisor import Supervisor
from blink_server.repository.surroundings import Limits, Surroundings
from blink_server.repository.wanted import InvalidVersion, WantedSet, WantedVersion
from blink_server.runtime_dir import RuntimeDirectory

log = logging.getLogger(__name__)


class Manager:
    """All calls on the provisioner's event loop."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        catalog: Catalog,
        runtime: RuntimeDirectory,
        *,
        limits: Limits | None = None,
        admission: Admission | None = None,
        tokenizers: Mapping[str, TokenizerLoader] | None = None,
        observe: Callable[[ModelStateChange], None] = lambda _: None,
        reselect: Callable[[Collection[Generation]], Awaitable[None]] | None = None,
    ) -> None:
        """`tokenizers`: for warm-up requests, which are text. `observe` hears of each change.

        `reselect`, told of every generation that cannot be loaded, applies what is wanted then.
        """
        self._backends = backends
        self._catalog = catalog
        self._runtime = runtime
        self._limits = limits or Limits()
        self._around = Surroundings(
            runtime=runtime,
            admission=admission or Admission(),
            limits=self._limits,
            tokenizers=tokenizers or {},
            loading=asyncio.Semaphore(self._limits.parallel_loads),
            publish=self.publish,
            observe=observe,
            released=catalog.released,
            threads=self._threads,
            reselect=self._reselect,
        )
        self._select = reselect
        self._supervisors: dict[Generation, Supervisor] = {}
        self._tasks: dict[Generation, asyncio.Task[None]] = {}
        self._wanted: dict[Generation, WantedVersion] = {}
        self._invalid: dict[Generation, InvalidVersion] = {}
        self._held: Mapping[str, str] = {}
        self._epochs: dict[VersionKey, int] = {}  # of the last load, also of versions gone
        self._inherited: Sequence[RunnerProcess] = ()
        self._started = False  # everything has been READY or UNAVAILABLE once
        self._draining = False
        self._ending = False
        catalog.on_change(self._act_soon)

    async def inherit(self) -> None:
        """Find the runners that a dead predecessor has left in the runtime directory.

        Call it before `apply`, which puts those that are wanted into service again and ends the
        others.
        """
        self._inherited = await left_runners(self._runtime, self._limits.kill_grace)
        self._epochs.update((each.wanted.key, each.key.epoch) for each in self._inherited)

    async def apply(self, wanted: WantedSet) -> None:
        """Begin to make this, the complete wanted set, what runs; returns without waiting."""
        self._wanted = {each.generation: each for each in wanted.valid}
        self._invalid = {each.generation: each for each in wanted.invalid}
        self._held = wanted.held
        inherited, self._inherited = self._inherited, ()
        for runner in inherited:
            if runner.wanted.version.config["backend"] in self._backends:
                self._supervise(runner.wanted, runner)
            else:
                await runner.stop(self._limits.kill_grace)
        for generation, supervisor in self._supervisors.items():
            if generation in self._wanted:
                supervisor.wanted = self._wanted[generation]
            elif (aliases := wanted.aliases.get(generation.model)) is not None:
                supervisor.wanted = replace(supervisor.wanted, aliases=aliases)
        self._act()
        await self.publish()

    async def settled(self) -> None:
        """Wait until every wanted version has been READY or UNAVAILABLE once."""
        while waiting := [s for s in self._supervisors.values() if not s.settled.is_set()]:
            await waiting[0].settled.wait()

    async def supervising(self, generations: Collection[Generation]) -> list[Supervisor]:
        """Wait until each of these, as far as it is still wanted, has begun; returns them.

        One that is still ending, wanted again, begins when it has ended.
        """
        while True:
            wanted = [each for each in generations if each in self._wanted]
            found = [self._supervisors.get(each) for each in wanted]
            begun = [each for each in found if each is not None and not each.leaving]
            if len(begun) == len(wanted):
                return begun
            await self._catalog.next_change()

    async def until_left(self, model: str) -> None:
        """Wait until no version of the model is READY."""
        while any(
            generation.model == model and each.harness.state is State.READY
            for generation, each in self._supervisors.items()
        ):
            await self._catalog.next_change()

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        """Of every generation that is not gone, by name and version."""
        return [self._supervisors[generation] for generation in sorted(self._supervisors)]

    async def runner_connected(self, peer: Peer, registration: RegisterRunner) -> None:
        """Serve one runner's control connection; a runner that nobody started is told to stop."""
        key = EndpointKey(registration.model, registration.version, registration.epoch)
        runners = (supervisor.runner for supervisor in self._supervisors.values())
        runner = next((each for each in runners if each is not None and each.key == key), None)
        if not isinstance(runner, RunnerProcess):
            log.warning("%s: %s is not wanted, told to stop", peer.name, key)
            await peer.send(Stop())
            return
        await runner.serve(peer)

    async def drain(self) -> None:
        """The server is going: say so to the workers, who refuse new requests from then on."""
        self._draining = True
        await self.publish()

    async def end_requests(self) -> None:
        """Their time is over too: have the workers end what is still in flight."""
        self._ending = True
        await self.publish()

    async def close(self, drain_seconds: float) -> None:
        """Unload every version, giving requests in flight `drain_seconds`; waits for the end."""
        self._draining = True
        for supervisor in self._supervisors.values():
            supervisor.leave(drain_seconds)
        await asyncio.gather(*self._tasks.values())
        for runner in self._inherited:
            await runner.stop(self._limits.kill_grace)
        self._inherited = ()

    def kill(self) -> None:
        """End every runner at once; `close` then returns soon."""
        for supervisor in self._supervisors.values():
            supervisor.kill()

    async def publish(self) -> None:
        """Tell the workers of every version and of the server's own state.

        Nothing is said before the runners of a predecessor are back: its workers serve on with
        the catalog they have, which is true of them.
        """
        if any(s.returning for s in self._supervisors.values()):
            return
        await self._catalog.publish(
            self._server_state(),
            catalog_entries(self._supervisors.values(), self._invalid.values(), self._held),
            ending=self._ending,
        )

    def _server_state(self) -> ServerState:
        if self._draining:
            return "DRAINING"
        # A model that comes later does not make the server start again.
        self._started = self._started or all(s.settled.is_set() for s in self.supervisors)
        return "READY" if self._started else "STARTING"

    def _act_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._act)

    def _act(self) -> None:
        if self._draining:
            return
        supervisors = self._supervisors
        actual = {generation: self._state(s) for generation, s in supervisors.items()}
        # What cannot even be loaded is a load that has failed: what it was to replace serves on.
        actual.update(dict.fromkeys(self._invalid, State.UNAVAILABLE))
        for action in next_actions(
            [*self._wanted, *self._invalid],
            actual,
            held=self._held,
            proven=[generation for generation, s in supervisors.items() if s.proven],
            starved=[generation for generation, s in supervisors.items() if s.attempts.starved],
        ):
            if isinstance(action, Load):
                self._supervise(self._wanted[action.generation])
            else:
                self._supervisors[action.generation].leave(self._limits.drain)

    def _state(self, supervisor: Supervisor) -> State:
        """A version serves when every worker can reach it: only then may another go for it."""
        state, runner = supervisor.harness.state, supervisor.runner
        if state is State.READY and (runner is None or not self._catalog.reachable(runner.key)):
            return State.LOADING
        return state

    def _supervise(self, wanted: WantedVersion, inherited: RunnerProcess | None = None) -> None:
        key, generation = wanted.key, wanted.generation
        harness = Harness(key.model, key.version)
        supervisor = Supervisor(
            wanted,
            harness,
            self._around,
            backend=self._backends[str(wanted.version.config["backend"])],
            next_epoch=lambda: self._next_epoch(key),
            inherited=inherited,
            awaited=any(s.awaited for g, s in self._supervisors.items() if g.model == key.model),
        )
        # What is READY now may let an older version go; an observer must not do that itself.
        harness.observe(lambda *_: self._act_soon())
        self._supervisors[generation] = supervisor
        self._tasks[generation] = asyncio.create_task(self._run(generation), name=str(key))

    async def _reselect(self) -> None:
        if self._select is not None and not self._draining:
            broken = [each for each, s in self._supervisors.items() if s.attempts.broken]
            await self._select(broken)

    def _threads(self, version: ModelVersion) -> int:
        """CPU threads for a load that begins now; what is loaded keeps those it has."""
        served = [each.version for each in self._wanted.values()]
        held = (s.wanted for s in self._supervisors.values() if s.wanted.key.model in self._held)
        served += [each.version for each in held]
        return cpu_threads(version, served, cores=usable_cores())

    def _next_epoch(self, key: VersionKey) -> int:
        self._epochs[key] = self._epochs.get(key, 0) + 1
        return self._epochs[key]

    async def _run(self, generation: Generation) -> None:
        supervisor = self._supervisors[generation]
        await supervisor.run()
        supervisor.settled.set()  # it may have gone before its load began
        del self._supervisors[generation], self._tasks[generation]
        for supervisor in self._supervisors.values():
            if supervisor.awaited:
                supervisor.retry()
        self._act()
        await self.publish()
