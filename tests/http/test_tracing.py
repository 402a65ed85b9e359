"""Traces: one span a request and what it waited for, from the scheduler's own time stamps."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

from blink_server.backend import RequestTiming
from blink_server.finished_request import FinishedRequest
from blink_server.http.tracing import Tracer, clock_offset, otlp_tracer
from blink_server.testing.fake_backend import TIMING
from blink_server.testing.otlp_collector import OtlpCollector, otlp_collector

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
LIMIT_SECONDS = 20
PARENT = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}


@pytest.fixture
def spans(worker: Any) -> Any:
    """What has been exported of requests to `worker`."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    worker.metrics.tracer = Tracer(provider)
    return exporter


async def exemplars(worker: Any, label: str) -> set[str | None]:
    """What all exemplars say of `label`."""
    metrics = await worker.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    return {
        sample.exemplar.labels.get(label)
        for family in parse(metrics.text)  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.exemplar is not None
    }


async def test_a_request_is_one_span_with_what_it_waited_for(worker: Any, spans: Any) -> None:
    worker.serve("hello")
    answer = await worker.chat("Hi")
    *children, root = spans.get_finished_spans()
    assert root.name == "chat tiny"
    assert [span.name for span in children] == ["tokenise", "queue", "prefill", "decode", "stream"]
    for span in children:
        assert span.parent.span_id == root.context.span_id
        assert span.context.trace_id == root.context.trace_id
        assert span.start_time <= span.end_time
    stages = {span.name: span.end_time - span.start_time for span in children}
    assert stages["queue"] == TIMING.prefill_ns - TIMING.claimed_ns
    assert stages["prefill"] == TIMING.first_token_ns - TIMING.prefill_ns
    assert stages["decode"] == TIMING.finished_ns - TIMING.first_token_ns
    assert root.attributes["gen_ai.operation.name"] == "chat"
    assert (
        root.attributes["gen_ai.usage.output_tokens"] == answer.json["usage"]["completion_tokens"]
    )
    assert root.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert root.attributes["gen_ai.response.model"] == "tiny:1"


async def test_a_caller_s_trace_is_gone_on_with(worker: Any, spans: Any) -> None:
    worker.serve("hello")
    body = {"model": "tiny", "prompt": "Hi"}
    await worker.post("/v1/completions", body, headers=PARENT)
    root = spans.get_finished_spans()[-1]
    assert format(root.context.trace_id, "032x") == TRACE_ID
    assert format(root.parent.span_id, "016x") == PARENT_ID
    assert await exemplars(worker, "trace_id") == {TRACE_ID}


async def test_one_id_tells_a_request_in_its_header_its_spans_and_exemplars(
    worker: Any, spans: Any
) -> None:
    worker.serve("hello")
    body = {"model": "tiny", "prompt": "Hi"}
    answer = await worker.post("/v1/completions", body, headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert {s.attributes["blink.request_id"] for s in spans.get_finished_spans()} == {"mine-1"}
    assert await exemplars(worker, "request_id") == {"mine-1"}


async def test_an_id_too_long_for_an_exemplar_is_left_out(worker: Any, spans: Any) -> None:
    worker.serve("hello")
    body = {"model": "tiny", "prompt": "Hi"}
    headers = {"X-Request-Id": "x" * 128, **PARENT}
    assert (await worker.post("/v1/completions", body, headers=headers)).status_code == 200
    assert await exemplars(worker, "request_id") == {None}
    assert await exemplars(worker, "trace_id") == {TRACE_ID}


@pytest.mark.parametrize("header", ["", "00-zz", f"00-{'0' * 32}-{PARENT_ID}-01"])
async def test_a_bad_traceparent_begins_a_trace(worker: Any, spans: Any, header: str) -> None:
    worker.serve("hello")
    body = {"model": "tiny", "prompt": "Hi"}
    answer = await worker.post("/v1/completions", body, headers={"traceparent": header})
    assert answer.status_code == 200
    assert spans.get_finished_spans()[-1].parent is None


async def test_every_choice_has_its_stages(worker: Any, spans: Any) -> None:
    worker.serve("hello")
    await worker.complete(n=3)
    names = [span.name for span in spans.get_finished_spans()]
    assert (names.count("decode"), names.count("text_completion tiny")) == (3, 1)


async def test_a_failure_is_the_span_s_status(worker: Any, spans: Any) -> None:
    worker.serve(lambda request: [RuntimeError("the engine is gone")])
    assert (await worker.complete()).status_code == 500
    root = spans.get_finished_spans()[-1]
    assert not root.status.is_ok
    assert [span.name for span in spans.get_finished_spans()] == ["tokenise", root.name]


def test_a_collector_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blink_server.http.tracing._CLOSE_SECONDS", 0.1)
    answers, asked = threading.Event(), threading.Event()

    class Hanging(InMemorySpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            asked.set()
            answers.wait(LIMIT_SECONDS)
            return super().export(spans)

    exporter = Hanging()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    provider.get_tracer("test").start_span("the last").end()
    Tracer(provider).close()
    assert exporter.get_finished_spans() == ()
    assert asked.wait(LIMIT_SECONDS)
    answers.set()


def finished(submitted: int, timing: RequestTiming, first: int, end: int) -> FinishedRequest:
    return FinishedRequest(
        model="m",
        version=1,
        operation="chat",
        outcome="stop",
        prompt_tokens=1,
        generated_tokens=2,
        received_ns=submitted,
        submitted_ns=submitted,
        first_token_ns=first,
        finished_ns=end,
        timing=timing,
    )


TIMES = st.lists(st.integers(1, 10**12), min_size=6, max_size=6).map(sorted)


@given(TIMES, st.integers(-(10**15), 10**15))
def test_another_clock_is_mapped_within_the_error_told(times: list[int], ahead: int) -> None:
    submitted, claimed, prefill, token, end, seen = times
    timing = RequestTiming(claimed + ahead, prefill + ahead, token + ahead, end + ahead)
    offset, error = clock_offset(finished(submitted, timing, seen, seen))
    untold = (claimed - submitted) + (seen - end)
    assert abs(offset + ahead) <= untold
    assert (offset, error) == (0, 0) or error == untold


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    with otlp_collector() as collector:
        yield collector


async def test_spans_reach_a_collector(
    worker: Any, collector: OtlpCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blink_server.http.tracing._CLOSE_SECONDS", LIMIT_SECONDS)
    worker.metrics.tracer = otlp_tracer(f"{collector.url}/", "1.2.3")
    worker.serve("hello")
    await worker.chat("Hi")
    worker.metrics.tracer.close()
    [resource] = collector.received[0].resource_spans
    attributes = {item.key: item.value.string_value for item in resource.resource.attributes}
    assert attributes["service.name"] == "blink-server"
    assert attributes["service.version"] == "1.2.3"
    assert "chat tiny" in [span.name for span in collector.spans]


async def test_a_collector_that_is_down_costs_requests_nothing(worker: Any) -> None:
    worker.metrics.tracer = otlp_tracer("http://127.0.0.1:9", "1")
    worker.serve("hello")
    assert (await worker.chat("Hi")).status_code == 200
    worker.metrics.tracer.close()
