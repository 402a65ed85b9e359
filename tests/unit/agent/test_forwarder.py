from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blink_persistent import _native
from blink_persistent.agent import forwarder
from blink_persistent.agent.port import Region
from blink_persistent.ring import RECORD, WORDS, Reason, SlotState
from blink_persistent.testing.scripted_request import Answer, ScriptedRequest
from blink_server.testing.byte_tokens import byte_tokens, grammar_of

SHORT = ScriptedRequest(prompt=(5, 6, 7), max_tokens=4, stop=(99, 98))
Write = tuple[Region, int, int]


@pytest.fixture
def writes(machine: Any) -> list[Write]:
    """What goes to the port, in order: (region, offset, bytes)."""
    seen: list[Write] = []
    write = machine.port.write

    def note(region: Region, offset: int, data: np.ndarray[Any, Any]) -> None:
        seen.append((region, offset, data.nbytes))
        write(region, offset, data)

    machine.port.write = note
    return seen


def test_words_come_after_all_that_they_announce(machine: Any, writes: list[Write]) -> None:
    slots = (0, 3, 300)
    for slot in slots:
        machine.workers.submit(slot, SHORT)
    machine.relay.flush()
    regions = [region for region, *_ in writes]
    announced = regions.index(Region.WORDS)
    assert set(regions[announced:]) == {Region.WORDS}
    assert regions.count(Region.PROMPTS) == regions.count(Region.AUX) == len(slots)
    records = [(offset, size) for region, offset, size in writes if region is Region.RECORDS]
    assert records == [(slot * RECORD.itemsize, RECORD.itemsize) for slot in slots]


def test_a_burst_goes_in_few_writes(machine: Any, writes: list[Write]) -> None:
    whole = tuple(3 + n % 90 for n in range(machine.shape.context_length - 1))
    for slot in range(40):
        machine.workers.submit(slot, ScriptedRequest(prompt=(*whole, 5), max_tokens=1))
    machine.relay.flush()
    assert writes == [
        (Region.PROMPTS, 0, 40 * 4 * machine.shape.context_length),
        (Region.RECORDS, 0, 40 * RECORD.itemsize),
        (Region.WORDS, 0, 40 * WORDS.itemsize),
    ]


def test_a_cancel_is_one_write_of_one_slots_words(machine: Any, writes: list[Write]) -> None:
    machine.workers.submit(7, SHORT)
    machine.relay.flush()
    writes.clear()
    machine.workers.cancel(7)
    machine.relay.flush()
    assert writes == [(Region.WORDS, 7 * WORDS.itemsize, WORDS.itemsize)]


def test_without_news_nothing_is_sent(machine: Any, writes: list[Write]) -> None:
    machine.relay.turn()
    assert writes == []
    machine.workers.submit(7, SHORT)
    machine.relay.turn()
    writes.clear()
    machine.relay.turn()
    assert writes == []


def test_a_burst_beyond_a_turns_most_is_sent_over_several(
    machine: Any, writes: list[Write], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarder, "_MOST_SUBMITS", 2)
    submitted = machine.harness.ring.words["submit"]
    for slot in range(5):
        machine.workers.submit(slot, SHORT)
    for sent in (2, 4, 5):
        machine.relay.turn()
        assert submitted[machine.ring_slot(0) :][:6].tolist() == [1] * sent + [0] * (6 - sent)
    assert [region for region, *_ in writes].count(Region.AUX) == 5


def test_a_flush_returns_when_all_is_in_the_ring(machine: Any) -> None:
    machine.port.post = lambda: None  # nothing lands by itself
    for slot in range(50):
        machine.workers.submit(slot, SHORT)
    machine.relay.flush()
    submitted = machine.harness.ring.words["submit"][machine.ring_slot(0) :][:51]
    assert submitted.tolist() == [1] * 50 + [0]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_offset": 0xFFFFFFFF},
        {"prompt_length": 0xFFFFFFFF},
        {"stop_offset": 0xFFFFFFF0, "stop_count": 0xFF},
        {"bias_offset": 1 << 31, "bias_count": 1 << 31},
        {"output_offset": 0xFFFFFFFF},
        {"logprobs": 0xFFFFFFFF},
    ],
)
def test_a_record_that_points_elsewhere_ends_its_request_alone(
    machine: Any, fields: dict[str, int]
) -> None:
    machine.workers.submit(0, ScriptedRequest(prompt=(5, 6), overrides=fields))
    machine.workers.submit(1, SHORT)
    machine.relay.turn()
    machine.harness.settle()
    machine.relay.turn()
    status = machine.workers.accepted(0)
    assert (status.state, status.reason) == (SlotState.DECODE_COMPLETED, Reason.INVALID_RECORD)
    good = Answer(machine.workers.output(1), machine.workers.accepted(1).reason)
    assert good == SHORT.answer(machine.shape)


def test_a_grammar_that_requests_share_is_sent_once(machine: Any, writes: list[Write]) -> None:
    grammar = grammar_of({"type": "choice", "texts": ["a", "b"]}, byte_tokens())
    trie = _native.TokenTrie(grammar.tokens.data, grammar.tokens.offsets)
    table = _native.build_grammar(
        *(trie, grammar.class_of, grammar.next, grammar.accepting), most_words=999, seconds=60.0
    )
    place = 5000
    machine.workers.ring.aux[0][place : place + len(table)] = table
    record = {"grammar_offset": place, "grammar_words": len(table)}
    asked = ScriptedRequest((5, 6, 7), max_tokens=4, overrides=record)
    for slot in (0, 1, 7):
        machine.workers.submit(slot, asked)
        machine.relay.flush()
    tables = [(offset, size) for region, offset, size in writes if region is Region.AUX]
    assert tables == [(4 * place, table.nbytes)]
    sent = machine.harness.ring.aux[1][place : place + len(table)]
    assert sent.tolist() == table.tolist()
