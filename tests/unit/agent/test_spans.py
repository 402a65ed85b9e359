from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink_persistent.agent.spans import join


def joined(spans: list[tuple[int, int]], **options: int) -> list[tuple[int, int]]:
    return [(span.start, span.end) for span in join(spans, **options)]


@pytest.mark.parametrize(
    ("spans", "options", "expected"),
    [
        ([], {}, []),
        ([(5, 5)], {}, []),
        ([(8, 12), (0, 8)], {}, [(0, 12)]),
        ([(0, 8), (9, 12)], {}, [(0, 8), (9, 12)]),
        ([(0, 8), (9, 12)], {"gap": 1}, [(0, 12)]),
        ([(0, 20), (4, 8)], {}, [(0, 20)]),
        ([(0, 8), (8, 16), (16, 24)], {"longest": 16}, [(0, 16), (16, 24)]),
        ([(0, 40)], {"longest": 16}, [(0, 16), (16, 32), (32, 40)]),
    ],
)
def test_joins(
    spans: list[tuple[int, int]], options: dict[str, int], expected: list[tuple[int, int]]
) -> None:
    assert joined(spans, **options) == expected


spans_of_bytes = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 60)).map(lambda s: (s[0], s[0] + s[1]))
)


@given(spans=spans_of_bytes, gap=st.integers(0, 20), longest=st.integers(8, 100))
def test_every_byte_is_covered_by_spans_apart(
    spans: list[tuple[int, int]], gap: int, longest: int
) -> None:
    found = join(spans, gap=gap, longest=longest)
    assert all(0 < span.end - span.start <= longest for span in found)
    wanted = {byte for start, end in spans for byte in range(start, end)}
    members = [byte for span in found for start, end in span.members for byte in range(start, end)]
    assert set(members) == wanted
    for span in found:
        assert all(span.start <= start < end <= span.end for start, end in span.members)
