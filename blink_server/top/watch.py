"""What is known of a server now, and how fast its counters grow."""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from blink_server.backoff import Backoff
from blink_server.top.feed import Lost, Refused, State, events, merge

_WINDOW_SECONDS = 3.0
_SHORTEST_SECONDS = 0.5  # over less a rate says nothing
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 10.0


class Rates:
    """Growth of numbers, by path in the state, over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, State]] = deque()

    def observe(self, now: float, state: State) -> None:
        """What the feed said at `now`, seconds of a monotonic clock."""
        counters = {name: state.get(name, {}) for name in ("schedulers", "graphs")}
        self._seen.append((now, copy.deepcopy(counters)))
        self._forget(now)

    def growth(self, now: float, *path: str) -> tuple[float, float] | None:
        """By how much the number at `path` has grown, and in how many seconds; None: not known.

        It is not known where there was no such number yet, or it began anew.
        """
        self._forget(now)
        if not self._seen:
            return None
        begun, before = self._seen[0]
        old, new = _at(before, path), _at(self._seen[-1][1], path)
        if old is None or new is None or new < old or now - begun < _SHORTEST_SECONDS:
            return None
        return new - old, now - begun

    def per_second(self, now: float, *path: str) -> float | None:
        """The same as a rate."""
        grown = self.growth(now, *path)
        return None if grown is None else grown[0] / grown[1]

    def _forget(self, now: float) -> None:
        while len(self._seen) > 1 and now - self._seen[1][0] >= _WINDOW_SECONDS:
            self._seen.popleft()


def _at(state: State, path: tuple[str, ...]) -> float | None:
    found: Any = state
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return None if found is None else float(found)


class Watch:
    """A server's state, kept up to date by `follow`; `lock` guards state and rates.

    `trouble` says why the state is not that of a living connection; `answered` is set when the
    first state or trouble is there.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.url = url
        self.clock = clock
        self.state: State = {}
        self.rates = Rates()
        self.lock = threading.Lock()
        self.answered = threading.Event()
        self.trouble = ""

    def apply(self, name: str, payload: State) -> None:
        """Take an event of the feed over."""
        with self.lock:
            if name == "state":
                self.state, self.rates = payload, Rates()
            else:
                merge(self.state, payload)
            self.rates.observe(self.clock(), self.state)
            self.trouble = ""
        self.answered.set()

    def follow(self, key: str | None, ended: threading.Event) -> None:
        """Follow the feed, over new connections where one is lost, until `ended` or refused."""
        backoff = Backoff(_FIRST_WAIT, _LONGEST_WAIT)
        while not ended.is_set():
            try:
                for name, payload in events(self.url, key):
                    self.apply(name, payload)
                    backoff.reset()
                self._lose("the server has closed the connection")
            except Lost as error:
                self._lose(str(error))
            except Refused as error:
                self._lose(str(error))
                return
            ended.wait(backoff.next())

    def _lose(self, trouble: str) -> None:
        with self.lock:
            self.trouble = trouble
        self.answered.set()
