from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blink_server.bench.sse import EventParser

payloads = st.lists(st.binary(min_size=1).filter(lambda b: not {10, 13} & set(b)), max_size=8)


def fed(stream: bytes, cuts: list[int]) -> list[bytes]:
    parser, found, last = EventParser(), [], 0
    for cut in [*sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]:
        found += parser.feed(stream[last:cut])
        last = cut
    return found


@given(payloads, st.lists(st.integers(0, 10_000)), st.sampled_from([b"\n", b"\r\n"]))
def test_events_are_the_same_however_the_bytes_are_cut(
    events: list[bytes], cuts: list[int], end: bytes
) -> None:
    stream = b"".join(b"data: " + event + end + end for event in events)
    assert fed(stream, cuts) == events


def test_what_is_no_data_is_left_out() -> None:
    stream = (
        b": keep-alive\n\nevent: x\nid: 3\n\nevent: y\ndata:a\ndata: b\n\ndata: {}\n\ndata: half"
    )
    assert fed(stream, []) == [b"a\nb", b"{}"]
