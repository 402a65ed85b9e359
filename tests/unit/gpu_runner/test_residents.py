"""All schedulers of a GPU stand still together, and go on afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from blink_persistent.gpu.driver import CudaError
from blink_persistent.gpu_runner import pulse
from blink_persistent.gpu_runner.residents import Residents
from blink_persistent.gpu_runner.service import GpuLost
from blink_persistent.ring import Condition


class FakeScheduler:
    """Does what it is told, and writes it down."""

    def __init__(self, name: str, said: list[str]) -> None:
        self._name, self._said = name, said
        self.now = Condition.STARTING
        self.hangs = self.dead = False
        self.step_ends: Callable[[], object] = lambda: None

    def launch(self) -> None:
        self._do("launch", Condition.RUNNING)

    def ask_to_park(self) -> None:
        self._said.append(f"{self._name} ask")

    def park(self, timeout_s: float = 1.0) -> None:
        if self.hangs:
            raise TimeoutError("a step hangs")
        self.step_ends()
        if self.now is not Condition.FAILED:
            self._do("park", Condition.PARKED)

    def stop(self, timeout_s: float = 1.0) -> None:
        self._do("stop", Condition.STOPPED)

    def condition(self) -> Condition:
        return self.now

    def _do(self, what: str, then: Condition) -> None:
        if self.dead:
            raise CudaError(f"{what}: CUDA_ERROR_ILLEGAL_ADDRESS")
        self._said.append(f"{self._name} {what}")
        self.now = then


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def two(said: list[str]) -> tuple[Residents, FakeScheduler, FakeScheduler]:
    residents = Residents()
    a, b = FakeScheduler("a", said), FakeScheduler("b", said)
    for each in (a, b):
        residents.add(each, step_seconds=1.0)
    said.clear()
    residents.parks, residents.longest_park, residents.longest_rest = 0, 0.0, 0.0
    return residents, a, b


Two = tuple[Residents, FakeScheduler, FakeScheduler]


def test_all_are_asked_before_any_is_waited_for(two: Two, said: list[str]) -> None:
    residents, _, _ = two
    with residents.exclusive():
        assert said == ["a ask", "b ask", "a park", "b park"]
        said.clear()
    assert said == ["a launch", "b launch"]
    assert residents.parks == 1
    assert residents.longest_park > 0


def test_a_slice_inside_a_slice_parks_nobody_again(two: Two, said: list[str]) -> None:
    residents, a, _ = two
    with residents.exclusive():
        with residents.exclusive():
            pass
        assert a.now is Condition.PARKED
    assert said.count("a park") == said.count("a launch") == 1
    assert residents.parks == 1


def test_they_go_on_where_the_slice_fails(two: Two) -> None:
    residents, a, b = two
    with pytest.raises(ValueError, match="no such kernel"), residents.exclusive():
        raise ValueError("no such kernel")
    assert a.now is b.now is Condition.RUNNING


def test_one_that_has_failed_is_not_launched_again(two: Two, said: list[str]) -> None:
    residents, a, b = two
    a.now = Condition.FAILED
    with residents.exclusive():
        pass
    assert (a.now, b.now) == (Condition.FAILED, Condition.RUNNING)
    assert "a launch" not in said


def test_without_residents_nothing_is_counted_and_nobody_is_waited_for(said: list[str]) -> None:
    residents = Residents()
    with residents.exclusive():
        pass
    assert residents.parks == 0
    with residents.exclusive():  # a version that is given back, the last one
        other = threading.Thread(target=residents.let_others_in)
        other.start()
        other.join(20)
        assert not other.is_alive()


def test_a_park_is_timed_with_and_without_the_steps_that_end_first(
    two: Two, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    residents, a, _ = two
    now = [100.0]
    monkeypatch.setattr("blink_persistent.gpu_runner.residents.time.monotonic", lambda: now[0])
    a.step_ends = lambda: now.__setitem__(0, now[0] + 0.04)
    with residents.exclusive():
        now[0] += 0.002
    assert residents.longest_park == pytest.approx(0.042)
    assert residents.longest_rest == pytest.approx(0.002)
    a.step_ends = lambda: None
    with residents.exclusive():
        now[0] += 0.003
    assert residents.longest_park == pytest.approx(0.042)
    assert residents.longest_rest == pytest.approx(0.003)
    assert "now 3.0 and 3.0 ms for test_residents.test_a_park_is_timed" in caplog.messages[-1]


def test_one_is_launched_first_while_the_others_stand_still(two: Two, said: list[str]) -> None:
    residents, _, _ = two
    residents.add(FakeScheduler("c", said), step_seconds=1.0)
    assert said == ["a ask", "b ask", "a park", "b park", "c launch", "a launch", "b launch"]


def test_one_that_is_gone_is_left_alone(two: Two, said: list[str]) -> None:
    residents, a, b = two
    residents.remove(a)
    residents.remove(a)
    assert said == ["a stop"]
    with residents.exclusive():
        pass
    assert said.count("a park") == 0
    assert b.now is Condition.RUNNING


@pytest.mark.parametrize(("trouble", "named"), [("hangs", "step hangs"), ("dead", "ILLEGAL")])
def test_what_cannot_be_parked_is_the_gpus_end(two: Two, trouble: str, named: str) -> None:
    residents, a, _ = two
    setattr(a, trouble, True)
    for _ in range(2):
        with pytest.raises(GpuLost, match=f"cannot park .*{named}"), residents.exclusive():
            pytest.fail("entered beside a running scheduler")


def test_another_thread_sees_nobody_parked(two: Two) -> None:
    residents, a, _ = two
    inside, seen = threading.Event(), []

    def look() -> None:
        inside.wait()
        with residents.running():
            seen.append(a.now)

    watcher = threading.Thread(target=look)
    watcher.start()
    with residents.exclusive():
        inside.set()
        watcher.join(0.05)
        assert not seen
    watcher.join()
    assert seen == [Condition.RUNNING]


class AwaitedScheduler(FakeScheduler):
    """As long as it runs, a call of CUDA waits."""

    def __init__(self, said: list[str]) -> None:
        super().__init__("awaited", said)
        self.asked = threading.Event()

    def ask_to_park(self) -> None:
        super().ask_to_park()
        self.asked.set()


def test_a_call_that_waits_is_let_through_whoever_holds_the_schedulers(said: list[str]) -> None:
    residents, scheduler = Residents(), AwaitedScheduler(said)
    residents.add(scheduler, step_seconds=1.0)
    entered, through = threading.Event(), []

    def look_while_a_call_waits() -> None:
        with residents.running():
            entered.set()
            through.append(scheduler.asked.wait(20))

    watcher = threading.Thread(target=look_while_a_call_waits)
    watcher.start()
    entered.wait()
    residents.let_others_in()
    watcher.join()
    assert through == [True]
    assert scheduler.now is Condition.RUNNING


def test_a_pulse_comes_where_nobody_parks(
    said: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "PULSE_SECONDS", 0.001)
    monkeypatch.setattr(pulse, "SUSPICIOUS_SECONDS", 0.0)
    residents, scheduler = Residents(), AwaitedScheduler(said)
    residents.add(scheduler, step_seconds=1.0)
    currents: list[str] = []
    entered = threading.Event()

    def wait_unforeseen() -> None:
        entered.set()
        scheduler.asked.wait(20)

    version = threading.Thread(target=wait_unforeseen, name="m:1")
    version.start()
    entered.wait()
    with pulse.pulsing(residents, lambda: currents.append(threading.current_thread().name)):
        version.join()
    assert scheduler.asked.is_set()
    assert currents == ["pulse"]
    assert scheduler.now is Condition.RUNNING
    assert residents.parks > 0
    assert "m:1: " in caplog.text
    assert "wait_unforeseen" in caplog.text
