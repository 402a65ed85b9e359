"""All measurements of a benchmark, one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from blink_server.bench.client import Client
from blink_server.bench.energy import EnergyMeter
from blink_server.bench.exchange import Site, ask_json
from blink_server.bench.interference import Neighbours
from blink_server.bench.measurement import Measurement, Prompt, Target, measure
from blink_server.bench.outcome import Outcome
from blink_server.bench.prompts import TextPrompts, file_count, random_ids, server_count
from blink_server.bench.settings import BenchSettings, Load
from blink_server.bench.workload import Workload
from blink_server.errors import BlinkError

MakePrompts = Callable[[Sequence[int], Sequence[int]], Awaitable[Sequence[Prompt]]]
"""`make(lengths, seed)`."""

ALONE, BESIDE = "alone", "beside"


@dataclass(frozen=True, slots=True)
class Condition:
    """What goes on beside a measurement: `enter` gives the neighbours, or None for none."""

    name: str
    enter: Callable[[], AbstractContextManager[Neighbours | None]]


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement. `neighbour_cpu`: cores that each neighbour got, on average; 1 is all."""

    load: Load
    condition: str
    round: int
    seed: Sequence[int]
    measurement: Measurement
    neighbour_cpu: float | None


class Session:
    """Measures every load under every condition, `repeats` times, in turns."""

    def __init__(self, settings: BenchSettings, meter: EnergyMeter | None) -> None:
        self._settings = settings
        self._meter = meter

    def run(self, conditions: Sequence[Condition]) -> Generator[Run, None, None]:
        """Each run when it has ended. Raises BlinkError where the server cannot be asked at all.

        Rounds begin with another condition each time, so that a drift hits all alike; within a
        round arrivals and lengths are the same for all, prompts are not.
        """
        loads = self._settings.loads()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            site = runner.run(self._settings.site.located())
            model = self._settings.model or runner.run(_only_model(site))
            target = self._settings.target(site, model)
            make = runner.run(self._prompt_maker(target, model))
            runner.run(self._probe(target, loads[0], make))
            for repeat in range(self._settings.repeats):
                for load in loads:
                    for turn in range(len(conditions)):
                        which = (turn + repeat) % len(conditions)
                        seed = (self._settings.seed, load.key, repeat)
                        workload = load.workload(seed)
                        prompts = runner.run(_prompts(make, workload, (*seed, which)))
                        condition = conditions[which]
                        yield self._one(runner, target, load, condition, seed, workload, prompts)

    def _one(
        self,
        runner: asyncio.Runner,
        target: Target,
        load: Load,
        condition: Condition,
        seed: Sequence[int],
        workload: Workload,
        prompts: Sequence[Prompt],
    ) -> Run:
        title = f"{load.name}, {condition.name}, round {seed[-1] + 1}"
        with condition.enter() as neighbours, _progress(title, len(prompts)) as on_end:
            begun, cpu = time.monotonic(), neighbours.cpu_seconds() if neighbours else 0.0
            done = runner.run(measure(target, workload, prompts, meter=self._meter, on_end=on_end))
            share = None
            if neighbours:
                used = neighbours.cpu_seconds() - cpu
                share = used / (time.monotonic() - begun) / len(neighbours.pids)
        return Run(load, condition.name, seed[-1] + 1, seed, done, share)

    async def _prompt_maker(self, target: Target, model: str) -> MakePrompts:
        settings = self._settings
        if settings.prompt_ids is not None:
            return _ids_maker(settings.prompt_ids)
        if settings.tokenizer is not None:
            return (await TextPrompts.prepare(file_count(settings.tokenizer))).make
        try:
            count = server_count(target.site, target.route, model)
            return (await TextPrompts.prepare(count)).make
        except BlinkError as error:
            raise BlinkError(
                f"the server does not count tokens ({error}); give --tokenizer or --prompt-ids"
            ) from None

    async def _probe(self, target: Target, load: Load, make: MakePrompts) -> None:
        """One short answer, so that what is wrong is said before anything is measured."""
        size = load.workload((self._settings.seed, load.key, 0)).sizes[:1]
        prompts = await make([one.input_tokens for one in size], (self._settings.seed,))
        client = Client(
            target.site, target.route, target.fields, timeout_seconds=600, clock=time.monotonic
        )
        for prompt in prompts:
            outcome = Outcome(0, time.monotonic(), size[0].input_tokens, 2)
            await client.send(outcome, client.request(prompt, 2))
            if outcome.error not in ("", "empty"):
                raise BlinkError(f"{target.route}: {outcome.error}: {outcome.detail}")


async def _only_model(site: Site) -> str:
    reply = await ask_json(site, "GET", "/v1/models")
    names = [str(model["id"]) for model in reply["data"]]
    if len(names) != 1:
        raise BlinkError(f"give --model; the server has {', '.join(names) or 'none'}")
    return names[0]


def _ids_maker(vocabulary: int) -> MakePrompts:
    async def make(lengths: Sequence[int], seed: Sequence[int]) -> Sequence[Prompt]:
        return list(random_ids(lengths, vocabulary, seed))

    return make


async def _prompts(make: MakePrompts, workload: Workload, seed: Sequence[int]) -> Sequence[Prompt]:
    return await make([size.input_tokens for size in workload.sizes], seed)


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[Outcome], None]]:
    """A bar of requests that have ended, failures beside it, on standard error."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as bar:
        task, failed = bar.add_task(title, total=total, failed=0), 0

        def on_end(outcome: Outcome) -> None:
            nonlocal failed
            failed += not outcome.succeeded
            bar.update(task, advance=1, failed=failed)

        yield on_end
