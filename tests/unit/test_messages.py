from __future__ import annotations

import json
from typing import Any

import pytest

from blink_server.backend import Endpoint
from blink_server.message_codec import MAX_LINE, ProtocolError, decode, encode
from blink_server.messages import (
    FROM_RUNNER,
    FROM_WORKER,
    REGISTRATIONS,
    TO_RUNNER,
    TO_WORKER,
    CatalogEntry,
    CatalogUpdate,
    Connected,
    Drain,
    EndpointKey,
    Failed,
    Message,
    Progress,
    Ready,
    RegisterRunner,
    RegisterWorker,
    Released,
    Stop,
)

ENTRY = CatalogEntry(
    model="m",
    version=3,
    epoch=2,
    state="READY",
    reason="",
    directory="/models/m/3",
    config={"limits": {"context_length": 8}, "name": "é"},
    aliases=("a", "b"),
    backend="fake",
    endpoint=Endpoint("shm", {"socket": "/run/x.sock"}),
)

MESSAGES: list[tuple[Message, tuple[type[Message], ...]]] = [
    (RegisterRunner("m", 3, 2, 77), REGISTRATIONS),
    (RegisterWorker(78, (EndpointKey("m", 3, 2),)), REGISTRATIONS),
    (Progress("weights", 0.25), FROM_RUNNER),
    (Ready(Endpoint("shm", {"socket": "/s"}), 1 << 40), FROM_RUNNER),
    (Failed("no memory\nat all"), FROM_RUNNER),
    (Drain(1.5), TO_RUNNER),
    (Stop(), TO_RUNNER),
    (Connected("m", 3, 2), FROM_WORKER),
    (Released("m", 3, 2), FROM_WORKER),
    (CatalogUpdate(7, "READY", (ENTRY,)), TO_WORKER),
]


@pytest.mark.parametrize(("message", "allowed"), MESSAGES, ids=lambda v: type(v).__name__)
def test_what_is_encoded_is_one_line_and_decodes_to_the_same(
    message: Message, allowed: tuple[type[Message], ...]
) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line, allowed) == message


def test_the_wire_form_is_the_documented_one() -> None:
    assert json.loads(encode(RegisterRunner("m", 3, 2, 77))) == {
        "type": "register",
        "role": "runner",
        "model": "m",
        "version": 3,
        "epoch": 2,
        "pid": 77,
    }
    assert json.loads(encode(Drain(2.0))) == {"type": "drain", "deadline_seconds": 2.0}


GOOD_READY = {
    "type": "ready",
    "endpoint": {"transport": "shm", "address": {}},
    "memory_bytes": 1,
}


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (GOOD_READY | {"memory_bytes": "1"}, "message 'ready': memory_bytes: expected int"),
        (GOOD_READY | {"memory_bytes": True}, "memory_bytes: expected int, found True"),
        (GOOD_READY | {"extra": 1}, "unknown field 'extra'"),
        (GOOD_READY | {"endpoint": {"transport": "shm"}}, "endpoint: field 'address' is missing"),
        (GOOD_READY | {"endpoint": "shm"}, "endpoint: expected an object"),
        ({"type": "ready", "memory_bytes": 1}, "field 'endpoint' is missing"),
        ({"type": "drain", "deadline_seconds": 1}, "unexpected message 'drain'"),
        ({"type": "register", "role": "king"}, "unexpected message 'register' of role 'king'"),
        ({"type": "progress", "stage": "s", "fraction": None}, "fraction: expected float"),
        ({"type": ["ready"]}, "unexpected message ['ready']"),
        ({}, "unexpected message None"),
    ],
)
def test_a_wrong_field_is_named(document: dict[str, Any], named: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(json.dumps(document).encode(), FROM_RUNNER)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [b"", b"\xff\xfe", b"[]", b"3", b"{", b"GET / HTTP/1.1\r\n", b"[" * 100_000, b'{"type": NaN}'],
)
def test_garbage_is_a_protocol_error(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(line, FROM_RUNNER)


def test_items_of_lists_are_checked() -> None:
    line = encode(CatalogUpdate(1, "READY", (ENTRY,))).replace(b'["a","b"]', b'["a",2]')
    with pytest.raises(ProtocolError, match=r"models\[0\]: aliases\[1\]: expected str, found 2"):
        decode(line, TO_WORKER)


def test_a_message_that_no_reader_would_take_is_not_encoded() -> None:
    with pytest.raises(ProtocolError, match="bytes, over"):
        encode(Failed("x" * MAX_LINE))
