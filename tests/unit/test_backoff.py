from __future__ import annotations

from blink_server.backoff import Backoff


def test_waits_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next() == 0.5


def test_what_has_lasted_as_long_as_the_longest_wait_was_a_success() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next(lasted) for lasted in (0.0, 2.9, 3.0, 0.0)] == [0.5, 1.0, 0.5, 1.0]
