"""Readings of the ring protocol that fail, as far as they concern the agent: see docs/ring.md.

Each test drives the exact order of events that breaks the wrong reading, shows what it would do,
and that the agent survives it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blink_persistent.agent.port import PortLost, Region, Span
from blink_persistent.ring import Reason, SlotState, unpack_status
from blink_persistent.testing.scripted_request import Answer, ScriptedRequest
from blink_persistent.testing.scripted_shape import ScriptedShape
from blink_server.errors import Unavailable

FIRST = ScriptedRequest(prompt=(5, 6, 7), max_tokens=6)
SECOND = ScriptedRequest(prompt=(40, 41, 42, 43, 44), max_tokens=3)
SLOT = 10


def serve(machine: Any, request: ScriptedRequest) -> Answer:
    """Its answer as the mirror shows it; its slot is free again afterwards."""
    machine.workers.submit(SLOT, request)
    machine.relay.turn()
    machine.harness.settle()
    machine.relay.turn()
    result = answer(machine)
    machine.workers.release(SLOT)
    machine.turn_until_idle()
    assert machine.workers.is_empty(SLOT)
    return result


def answer(machine: Any) -> Answer:
    status = machine.workers.accepted(SLOT)
    assert status is not None
    assert status.state is SlotState.DECODE_COMPLETED
    return Answer(machine.workers.output(SLOT), status.reason)


def test_reading_1_a_torn_read_is_shown_to_nobody(machine: Any) -> None:
    """{ticket 2, completed of 1}: by ticket alone the second request would get an old answer."""
    serve(machine, FIRST)
    completed = unpacked_word(SlotState.DECODE_COMPLETED, generated=6, ticket=1)
    machine.workers.submit(SLOT, SECOND)
    machine.relay.flush()
    machine.harness.run_pass()
    slot = machine.ring_slot(SLOT)
    ticket, epoch, _ = machine.harness.ring.atomic.status(slot)
    assert ticket == 2
    now = np.array([[ticket | epoch << 32, completed]], np.uint64)
    assert machine.relay.flights.news(SLOT, now)[0].size == 0
    machine.harness.settle()
    machine.relay.turn()
    assert answer(machine) == SECOND.answer(machine.shape)


def unpacked_word(state: SlotState, *, generated: int, ticket: int) -> int:
    word = generated | state << 32 | ticket << 56
    assert unpack_status(word) == (generated, state, Reason.NONE, ticket)
    return word


def test_reading_4_an_epoch_does_not_fence_a_late_submit(machine: Any) -> None:
    """What an agent has posted lands after its connection has ended: it is claimed all the same.

    So a successor may begin only when nothing can land any more; then it finds the word, waits for
    its end, and goes on from its ticket.
    """
    machine.workers.submit(SLOT, FIRST)
    old = machine.port
    old.post = lambda: None  # nothing lands yet
    machine.relay._forwarder.forward()
    left = len(old._queue)
    assert left, "nothing is under way"
    machine.relay.mirror.close()
    old.land(left)
    machine.restart()
    assert machine.harness.ring.atomic.submitted(machine.ring_slot(SLOT)) == 1
    assert machine.relay.busy
    machine.turn_until_idle()
    assert serve(machine, SECOND) == SECOND.answer(machine.shape)
    assert machine.harness.ring.atomic.submitted(machine.ring_slot(SLOT)) == 2


def test_reading_6_a_dead_worker_is_ended_through_the_mirror(machine: Any) -> None:
    """Whoever looks at the ring sees no submit, hands over, and the agent then sends it with the
    successor's record. In the mirror the submit is there, and is waited for."""
    machine.workers.submit(SLOT, FIRST)  # its worker dies here
    assert machine.harness.ring.atomic.submitted(machine.ring_slot(SLOT)) == 0
    machine.workers.cancel(SLOT)
    machine.workers.release(SLOT)
    assert not machine.workers.is_empty(SLOT)
    machine.turn_until_idle()
    assert machine.workers.is_empty(SLOT)
    assert serve(machine, SECOND) == SECOND.answer(machine.shape)


@pytest.mark.parametrize("delivered", range(5))
def test_reading_7_after_a_lost_connection_all_is_sent_again(machine: Any, delivered: int) -> None:
    """However much has arrived, the request runs once, with its own record."""
    serve(machine, SECOND)  # whose record is in the slot, to be torn
    port = machine.port
    machine.workers.submit(SLOT, FIRST)
    port.post = lambda: None  # nothing lands yet
    machine.relay._forwarder.forward()
    assert len(port._queue) >= 3  # prompt, record, words
    port.land(min(delivered, len(port._queue)))
    machine.harness.settle()
    port._queue.clear()
    port.cut()
    with pytest.raises(PortLost):
        machine.relay.turn()
    claims = machine.harness.ring.field("claims")
    machine.relay.resume(machine.connect())
    machine.relay.turn()
    machine.harness.settle()
    machine.relay.turn()
    assert answer(machine) == FIRST.answer(machine.shape)
    assert machine.harness.ring.field("claims") == 2 >= claims


def test_reading_7_tokens_still_in_the_ring_are_fetched_once(machine: Any) -> None:
    machine.workers.submit(SLOT, FIRST)
    machine.relay.turn()
    while len(machine.workers.output(SLOT)) < 2:
        machine.harness.run_pass()
        if machine.harness.flight is not None:
            machine.harness.finish_step()
        machine.relay.turn()
    machine.port.cut()
    machine.harness.settle()
    port = machine.connect()
    machine.relay.resume(port)
    fetched: list[Span] = []
    read = port.read
    port.read = lambda spans: (fetched.extend(spans), read(spans))[1]
    machine.relay.turn()
    assert answer(machine) == FIRST.answer(machine.shape)
    outputs = [span.length for span in fetched if span.region is Region.OUTPUTS]
    assert sum(outputs) == 4 * (6 - 2)


def test_reading_7_another_ring_is_no_continuation(machine: Any) -> None:
    machine.workers.submit(SLOT, FIRST)
    other = type(machine)(ScriptedShape(ranges=3, epoch=8))
    try:
        with pytest.raises(Unavailable, match="another ring"):
            machine.relay.resume(other.connect())
    finally:
        other.relay.close()
        other.harness.close()


def test_reading_8_a_mirror_serves_one_ring_only(machine: Any) -> None:
    """A status of the ring before has the right ticket, and its epoch tells it apart."""
    machine.workers.submit(SLOT, FIRST)
    machine.relay.flush()
    word = unpacked_word(SlotState.DECODE_COMPLETED, generated=6, ticket=1)
    before = np.array([[1 | (machine.shape.epoch - 1) << 32, word]], np.uint64)
    assert machine.relay.flights.news(SLOT, before)[0].size == 0
    now = np.array([[1 | machine.shape.epoch << 32, word]], np.uint64)
    assert machine.relay.flights.news(SLOT, now)[0].tolist() == [SLOT]


def test_reading_8_a_mirror_remade_goes_on_from_the_rings_words(machine: Any) -> None:
    for _ in range(3):
        serve(machine, FIRST)
    machine.relay.close()
    machine.restart()
    assert machine.workers.ring.atomic.submitted(SLOT) == 3
    assert machine.workers.is_empty(SLOT)
    assert not machine.relay.busy
    assert serve(machine, SECOND) == SECOND.answer(machine.shape)
    assert machine.harness.ring.atomic.submitted(machine.ring_slot(SLOT)) == 4
