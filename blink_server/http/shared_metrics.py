"""One view of all workers' metrics, whichever of them is asked.

Each worker counts in its own memory and answers on a Unix socket with a snapshot. Who is scraped
asks the others and adds up. What a worker has told, to others or in an answer of its own, is also
written to a file beside its socket, so that its counts outlive it: the arbiter folds a dead
worker's file into one for all the dead. A worker that is killed loses what it counted since the
last scrape, which nobody has seen. One that hangs is waited for once, for half a second; until it
has answered, it is shown as it was, and nobody waits for it again.

    <directory>/<pid>.sock, <pid>.json    of a worker
    <directory>/past.json                 of those that are gone
    <directory>/lock                      held while a file is folded, and while all are read
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from prometheus_client.core import Exemplar, Metric

from blink_server.http.triton_metrics import LAST_INFERENCE

Families = list[dict[str, Any]]  # a snapshot: what `_dump` makes of metrics

_ANSWER_SECONDS = 0.5
_LARGEST_ANSWER = 64 * 1024 * 1024
_PAST = "past.json"

LIVE_GAUGES = frozenset({"vllm:num_requests_running", "vllm:num_requests_waiting"})
"""What a worker has of these goes with it."""
_LATEST = frozenset({LAST_INFERENCE})  # the largest counts, not the sum


class SharedMetrics:
    """This worker's part: answers the others, and asks them."""

    def __init__(self, collect: Callable[[], Iterable[Metric]], directory: Path) -> None:
        """`collect` gives this worker's own metrics; `directory` is that of one server run."""
        self._collect = collect
        self._directory = directory
        self._name = str(os.getpid())
        self._server: asyncio.Server | None = None
        self._late: dict[str, asyncio.Task[Families | None]] = {}  # asked, and not waited for

    async def start(self) -> None:
        """Answer from now on. Raises OSError."""
        path = self._directory / f"{self._name}.sock"
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._answer, path)
        path.chmod(0o600)

    def close(self) -> None:
        """Leave the last counts behind and answer no more."""
        self._write(_dump(self._collect()))
        if self._server is not None:
            self._server.close()
        for task in self._late.values():
            task.cancel()

    async def families(self) -> list[Metric]:
        """Everybody's metrics, added up."""
        past, others = await asyncio.to_thread(self._read_files)
        fresh = await self._ask_all(others)
        for name in others.keys() - fresh.keys():
            if _gone(int(name)):
                await asyncio.to_thread(fold_worker, self._directory, int(name))
        told = [fresh.get(name, known) for name, known in others.items()]
        own = _dump(self._collect())
        self._write(own)  # before it is told: what a scrape has seen must outlive a kill
        return _restored(_added_up([own, past, *told]))

    async def _answer(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(self._write(_dump(self._collect())))
            await writer.drain()
        writer.close()

    def _write(self, own: Families) -> bytes:
        text = json.dumps(own).encode()
        with contextlib.suppress(OSError):  # a full disk must not end the telling
            _replace(self._directory / f"{self._name}.json", text)
        return text

    def _read_files(self) -> tuple[Families, dict[str, Families]]:
        """The dead workers' counts, and by name those that each of the others has told."""
        with _locked(self._directory, fcntl.LOCK_SH):
            names = {path.stem for path in self._directory.glob("[0-9]*.*")} - {self._name}
            return _read(self._directory / _PAST), {
                name: _without_live(_read(self._directory / f"{name}.json")) for name in names
            }

    async def _ask_all(self, names: Iterable[str]) -> dict[str, Families]:
        """The counts as of now of those who answer in time."""
        self._late = {name: task for name, task in self._late.items() if not task.done()}
        asked = {
            name: asyncio.create_task(self._ask(name)) for name in names if name not in self._late
        }
        try:
            if asked:
                await asyncio.wait(asked.values(), timeout=_ANSWER_SECONDS)
        finally:
            for name, task in asked.items():
                if not task.done() and self._late.setdefault(name, task) is not task:
                    task.cancel()
        answers = {name: task.result() for name, task in asked.items() if task.done()}
        return {name: answer for name, answer in answers.items() if answer is not None}

    async def _ask(self, name: str) -> Families | None:
        """Worker `name`'s counts as of its answer; None where it gives none."""
        path = self._directory / f"{name}.sock"
        try:
            reader, writer = await asyncio.open_unix_connection(path, limit=_LARGEST_ANSWER)
            try:
                answer = await reader.read()
            finally:
                writer.close()
            told: Families = json.loads(answer)
        except (OSError, ValueError):
            return None
        return told


def fold_worker(directory: Path, pid: int) -> None:
    """Add a dead worker's counts to those of all the dead. Twice is once.

    The arbiter does so; whoever is scraped does it for the workers of an arbiter that was killed.
    """
    left = directory / f"{pid}.json"
    with contextlib.suppress(OSError), _locked(directory, fcntl.LOCK_EX):
        total = _added_up([_read(directory / _PAST), _without_live(_read(left))])
        _replace(directory / _PAST, json.dumps(total).encode())
        for path in directory.glob(f"{pid}.*"):
            path.unlink()


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


@contextlib.contextmanager
def _locked(directory: Path, how: int) -> Iterator[None]:
    descriptor = os.open(directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def _read(path: Path) -> Families:
    try:
        families: Families = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return []
    return families


def _replace(path: Path, text: bytes) -> None:
    draft = path.with_suffix(".new")
    draft.write_bytes(text)
    draft.replace(path)


def _dump(metrics: Iterable[Metric]) -> Families:
    return [
        {
            "name": metric.name,
            "help": metric.documentation,
            "type": metric.type,
            "samples": [
                [sample.name, sample.labels, sample.value, _dump_exemplar(sample.exemplar)]
                for sample in metric.samples
            ],
        }
        for metric in metrics
    ]


def _dump_exemplar(exemplar: Exemplar | None) -> list[Any] | None:
    return None if exemplar is None else [exemplar.labels, exemplar.value, exemplar.timestamp]


def _without_live(families: Families) -> Families:
    return [family for family in families if family["name"] not in LIVE_GAUGES]


def _added_up(snapshots: Iterable[Families]) -> Families:
    """One snapshot: samples of equal name and labels are one, families keep their order."""
    families: dict[str, dict[str, Any]] = {}
    for family in (family for snapshot in snapshots for family in snapshot):
        total = families.setdefault(family["name"], {**family, "samples": {}})["samples"]
        combine = max if family["name"] in _LATEST else float.__add__
        for name, labels, value, exemplar in family["samples"]:
            key = name, *sorted(labels.items())
            before = total.get(key)
            if before is not None:
                value = combine(before[2], value)
                exemplar = _newer(before[3], exemplar)
            total[key] = [name, labels, value, exemplar]
    return [{**family, "samples": list(family["samples"].values())} for family in families.values()]


def _newer(one: list[Any] | None, other: list[Any] | None) -> list[Any] | None:
    candidates = [exemplar for exemplar in (one, other) if exemplar is not None]
    return max(candidates, key=lambda exemplar: exemplar[2] or 0.0, default=None)


def _restored(families: Families) -> list[Metric]:
    metrics = []
    for family in families:
        metric = Metric(family["name"], family["help"], family["type"])
        for name, labels, value, exemplar in family["samples"]:
            metric.add_sample(name, labels, value, exemplar=exemplar and Exemplar(*exemplar))
        metrics.append(metric)
    return metrics
