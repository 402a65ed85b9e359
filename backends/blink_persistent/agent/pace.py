"""How long the agent waits between two turns."""

from __future__ import annotations

from dataclasses import dataclass

_REST = 4  # times as long as a turn without news took


@dataclass(slots=True)
class Pace:
    """Seconds. From `floor` after news, doubling without any, up to `ceiling` while requests are
    in flight; `idle` with none, when only the header is to be read. Whatever a turn takes here, to
    look in vain costs a fifth of a core at most."""

    floor: float = 20e-6
    ceiling: float = 1e-3
    idle: float = 0.05
    _pause: float = 0.0

    def after(self, *, news: bool, busy: bool, took: float = 0.0) -> float:
        """The longest pause after a turn of `took` seconds; a worker's bell ends it early."""
        if news:
            self._pause = self.floor
        elif not busy:
            self._pause = self.idle
        else:
            self._pause = min(max(2 * self._pause, self.floor), self.ceiling)
            return max(self._pause, _REST * took)
        return self._pause
