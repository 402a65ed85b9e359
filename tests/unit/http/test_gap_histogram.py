"""The histogram of every token tells what the library's own would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.openmetrics.exposition import generate_latest

from blink_server.http.gap_histogram import GapHistogram

BUCKETS = (0.001, 0.5, 1, 10)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 0.001, 0.3, 0.5, 7, 11]))))
def test_it_tells_what_the_librarys_own_tells(told: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    gaps = GapHistogram("gap_seconds", "Gaps", "model", BUCKETS, ours)
    library = Histogram("gap_seconds", "Gaps", ["model"], buckets=BUCKETS, registry=theirs)
    for model, seconds in told:
        gaps.observer(model)(seconds)
        library.labels(model).observe(seconds)

    def lines(registry: CollectorRegistry) -> list[bytes]:
        # When a series began is told unless that is turned off, which is the process's affair.
        return [x for x in generate_latest(registry).splitlines() if b"_created" not in x]

    assert lines(ours) == lines(theirs)
