"""A grammar's table goes over the link once, and again when it may not be there any more."""

from __future__ import annotations

from blink_persistent.agent.sent_tables import SentTables


def test_equal_tables_are_sent_once() -> None:
    tables = SentTables()
    assert tables.must_send(0, 400, 1)
    assert not tables.must_send(0, 400, 1)
    assert tables.must_send(400, 800, 1)


def test_another_table_in_the_place_is_sent() -> None:
    tables = SentTables()
    tables.must_send(0, 400, 1)
    assert tables.must_send(200, 600, 2)
    assert tables.must_send(0, 400, 1)  # the other has overwritten its end


def test_lists_in_the_place_overwrite_it() -> None:
    tables = SentTables()
    tables.must_send(100, 400, 1)
    tables.overwritten(400, 500)
    tables.overwritten(0, 100)
    assert not tables.must_send(100, 400, 1)
    tables.overwritten(396, 404)
    assert tables.must_send(100, 400, 1)


def test_nothing_is_known_of_a_lost_link() -> None:
    tables = SentTables()
    tables.must_send(0, 400, 1)
    tables.forget()
    assert tables.must_send(0, 400, 1)
