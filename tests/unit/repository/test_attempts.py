from __future__ import annotations

import time

import pytest

from blink_server.repository.attempts import Attempts
from blink_server.repository.runner_process import LoadError, MemoryRefusedError
from blink_server.repository.surroundings import Limits

LIMITS = Limits(first_retry=1.0, longest_retry=5.0, healthy=60.0)
BROKEN = LoadError("exit code 3")
REFUSED = MemoryRefusedError("memory: needs 2 GiB")


def failed(attempts: Attempts, error: LoadError, *, unload_first: bool = False) -> Attempts:
    attempts.begun()
    attempts.failed(error, str(error), unload_first=unload_first)
    return attempts


def test_the_wait_doubles_up_to_a_limit_and_begins_anew_after_long_service() -> None:
    attempts = Attempts(LIMITS)
    assert [attempts.wait(0.0) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert attempts.wait(59.9) == 5.0
    assert [attempts.wait(served) for served in (60.0, 0.0)] == [1.0, 2.0]


def test_the_time_of_the_next_load_is_known_until_it_begins() -> None:
    attempts = failed(Attempts(LIMITS), BROKEN)
    assert attempts.retry_at == 0.0
    before = time.time()
    attempts.wait(0.0)
    assert before + 1.0 <= attempts.retry_at <= time.time() + 1.0
    attempts.begun()
    assert attempts.retry_at == 0.0


def test_a_reason_stays_until_a_load_succeeds() -> None:
    attempts = failed(Attempts(LIMITS), BROKEN)
    attempts.begun()
    assert (attempts.failure, attempts.broken) == ("exit code 3", True)
    attempts.succeeded()
    assert (attempts.failure, attempts.broken) == ("", False)


@pytest.mark.parametrize("unload_first", [False, True])
def test_what_lacks_memory_starves_only_where_what_serves_may_go(unload_first: bool) -> None:
    attempts = failed(Attempts(LIMITS), REFUSED, unload_first=unload_first)
    assert (attempts.starved, attempts.broken) == (unload_first, not unload_first)
    attempts.begun()
    assert not attempts.starved


def test_what_had_its_memory_and_failed_does_not_starve_again_and_keeps_its_reason() -> None:
    attempts = failed(Attempts(LIMITS), REFUSED, unload_first=True)
    failed(attempts, BROKEN, unload_first=True)
    failed(attempts, REFUSED, unload_first=True)
    assert (attempts.starved, attempts.broken) == (False, True)
    assert attempts.failure == "exit code 3"
    attempts.begun()
    attempts.succeeded()
    assert failed(attempts, REFUSED, unload_first=True).starved
