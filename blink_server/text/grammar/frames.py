"""The frames between a worker and the process that compiles for it: a length, then JSON."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from blink_server.text.grammar.automaton import Automaton

LENGTH = struct.Struct("<I")


def pack(header: Any) -> bytes:
    """A frame."""
    data = json.dumps(header).encode()
    return LENGTH.pack(len(data)) + data


def payload_bytes(header: Mapping[str, Any]) -> int:
    """Bytes of an automaton's arrays."""
    return 256 + int(header["states"]) * (4 * int(header["classes"]) + 1)


def unpack_automaton(header: Mapping[str, Any], payload: bytes) -> Automaton:
    """An automaton from its frame and its arrays."""
    states, classes = header["states"], header["classes"]
    table = np.frombuffer(payload, np.int32, states * classes, offset=256)
    return Automaton(
        np.frombuffer(payload, np.uint8, 256),
        table.reshape(states, classes),
        np.frombuffer(payload, np.uint8, states, offset=256 + table.nbytes),
        header["digest"],
    )


def pack_automaton(automaton: Automaton) -> bytes:
    """The frame {"states", "classes", "digest"} and, behind it, the arrays."""
    states, classes = automaton.next.shape
    header = pack({"states": states, "classes": classes, "digest": automaton.digest})
    arrays = (automaton.class_of, automaton.next, automaton.accepting)
    return header + b"".join(array.tobytes() for array in arrays)
