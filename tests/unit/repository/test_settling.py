from __future__ import annotations

from pathlib import Path

import pytest

from blink_server.repository.settling import Settling
from blink_server.repository.stamps import FileStamp, Stamp

PATH = Path("/m/1")
START = 1_000_000_000_000_000_000  # ns


class Clocks:
    """A monotonic and a wall clock that stand still until they are moved."""

    def __init__(self) -> None:
        self.monotonic, self.wall_ns = 5.0, START
        self.settling = Settling(
            1.0, monotonic=lambda: self.monotonic, wall_ns=lambda: self.wall_ns
        )

    def sleep(self, seconds: float) -> None:
        self.monotonic += seconds
        self.wall_ns += int(seconds * 1e9)

    def settled(self, stamp: Stamp) -> bool:
        return self.settling.settled(PATH, stamp)


def stamp(*, written_ns: int = START, size: int = 1, directory: int = 1) -> Stamp:
    return Stamp(directory, (FileStamp("config.json", 7, size, written_ns, written_ns),))


def test_what_has_long_been_there_is_complete_at_once() -> None:
    assert Clocks().settled(stamp(written_ns=START - 1_000_000_000))


def test_what_was_just_written_has_to_stay_as_it_is() -> None:
    clocks = Clocks()
    assert not clocks.settled(stamp())
    clocks.sleep(0.5)
    assert not clocks.settled(stamp())
    assert clocks.settling.due([PATH]) == 0.5
    clocks.sleep(0.5)
    assert clocks.settled(stamp())


def test_every_change_starts_the_time_again() -> None:
    clocks = Clocks()
    for size in range(1, 50):  # a slow copy
        assert not clocks.settled(stamp(size=size))
        clocks.sleep(0.9)
    clocks.sleep(0.1)
    assert clocks.settled(stamp(size=49))


def test_a_change_of_a_complete_directory_has_to_settle_whatever_its_times_say() -> None:
    clocks = Clocks()
    assert clocks.settled(stamp(written_ns=START - 10**12))
    assert not clocks.settled(stamp(written_ns=START - 10**12, size=2))


def test_a_directory_renamed_into_place_is_complete_at_once() -> None:
    clocks = Clocks()
    assert clocks.settled(stamp(written_ns=START - 10**12))
    assert clocks.settled(stamp(written_ns=START - 10**11, directory=2))
    assert not clocks.settled(stamp(written_ns=START, directory=3))


@pytest.mark.parametrize("back_ns", [10**9, 10**18])
def test_a_wall_clock_set_back_delays_by_the_settle_time(back_ns: int) -> None:
    clocks = Clocks()
    clocks.wall_ns -= back_ns
    assert not clocks.settled(stamp())
    clocks.sleep(1.0)
    assert clocks.settled(stamp())


def test_an_empty_directory_may_be_about_to_be_filled() -> None:
    clocks = Clocks()
    assert not clocks.settled(Stamp(1, ()))


def test_nothing_is_due_of_what_was_forgotten() -> None:
    clocks = Clocks()
    clocks.settled(stamp())
    clocks.settling.keep_only([])
    assert clocks.settling.due([PATH]) is None
