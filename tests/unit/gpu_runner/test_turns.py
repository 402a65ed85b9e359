"""Loads and unloads on one GPU follow one another, unloads first."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from blink_persistent.gpu_runner.turns import Turns


def in_thread(turn: Callable[[], AbstractContextManager[None]], name: str, done: list[str]) -> None:
    def take() -> None:
        with turn():
            done.append(name)

    threading.Thread(target=take, name=name).start()


def test_those_that_leave_come_before_those_that_come() -> None:
    turns, done = Turns(), []  # type: tuple[Turns, list[str]]
    with turns.to_load():
        in_thread(turns.to_load, "load", done)
        in_thread(turns.to_unload, "unload", done)
        while not turns._leaving:
            os.sched_yield()
        assert done == []
    for thread in threading.enumerate():
        if thread.name in ("load", "unload"):
            thread.join(10)
    assert done == ["unload", "load"]


def test_a_turn_ends_where_it_fails() -> None:
    turns = Turns()
    for turn in (turns.to_load, turns.to_unload):
        try:
            with turn():
                raise RuntimeError
        except RuntimeError:
            pass
    done: list[str] = []
    with turns.to_load():
        done.append("again")
    assert done == ["again"]
