from __future__ import annotations

from blink_persistent.agent.pace import Pace


def test_backs_off_while_nothing_comes_and_returns_to_the_floor_with_news() -> None:
    pace = Pace(floor=1.0, ceiling=5.0, idle=50.0)
    assert pace.after(news=True, busy=True) == 1.0
    assert [pace.after(news=False, busy=True) for _ in range(4)] == [2.0, 4.0, 5.0, 5.0]
    assert pace.after(news=True, busy=True) == 1.0


def test_looking_in_vain_takes_a_fifth_of_the_time_at_most() -> None:
    pace = Pace(floor=1.0, ceiling=5.0, idle=50.0)
    assert pace.after(news=True, busy=True, took=2.0) == 1.0
    assert pace.after(news=False, busy=True, took=0.75) == 3.0
    assert pace.after(news=False, busy=True, took=0.75) == 4.0
    assert pace.after(news=False, busy=True, took=3.0) == 12.0
    assert pace.after(news=False, busy=True) == 5.0


def test_rests_long_only_while_nothing_is_in_flight() -> None:
    pace = Pace(floor=1.0, ceiling=5.0, idle=50.0)
    assert pace.after(news=False, busy=False) == 50.0
    assert pace.after(news=False, busy=True) == 5.0
    assert pace.after(news=True, busy=False) == 1.0
    assert pace.after(news=False, busy=False) == 50.0
