"""The schedulers' part of /metrics."""

from __future__ import annotations

from typing import Any

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from blink_server.testing.fake_backend import SLOTS, STATS


async def test_every_field_is_exposed_for_each_version(worker: Any, monkeypatch: Any) -> None:
    session = worker.session("hello")
    monkeypatch.setattr(session, "stats", lambda: STATS)
    monkeypatch.setattr(session, "slots", lambda: SLOTS)
    silent = worker.session("hello")
    worker.directory.publish([worker.entry(session, version=1), worker.entry(silent, version=2)])
    text = (await worker.get("/metrics")).text
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(
            ("blink_", "vllm:kv", "vllm:num_pre", "vllm:cache", "vllm:it", "nv_inf")
        )
        and sample.name != "blink_model_state"
        and sample.labels.get("version")
    }
    assert found == {
        ("vllm:kv_cache_usage_perc", "tiny", "1"): 0.375,
        ("vllm:cache_config_info", "16", "tiny", "64", "1"): 1,
        ("vllm:iteration_tokens_total_sum", "tiny", "1"): 1000,
        ("vllm:iteration_tokens_total_count", "tiny", "1"): 100,
        ("vllm:iteration_tokens_total_bucket", "1.0", "tiny", "1"): 0,
        **{
            ("vllm:iteration_tokens_total_bucket", f"{most}.0", "tiny", "1"): 90
            for most in (8, 16, 32)
        },
        ("vllm:iteration_tokens_total_bucket", "64.0", "tiny", "1"): 96,
        **{
            ("vllm:iteration_tokens_total_bucket", f"{128 * 2**power}.0", "tiny", "1"): 100
            for power in range(8)
        },
        ("vllm:iteration_tokens_total_bucket", "+Inf", "tiny", "1"): 100,
        ("nv_inference_pending_request_count", "tiny", "1"): 2,
        ("vllm:num_preemptions_total", "tiny", "1"): 5,
        ("blink_scheduler_rows", "tiny", "1"): 8,
        ("blink_scheduler_rows_used", "tiny", "1"): 3,
        ("blink_scheduler_waiting", "tiny", "1"): 2,
        ("blink_scheduler_steps_total", "tiny", "1"): 100,
        ("blink_tail_launches_total", "tiny", "1"): 1,
        ("blink_launch_retries_total", "tiny", "1"): 4,
        ("blink_scheduler_parks_total", "tiny", "1"): 2,
        ("blink_scheduler_gap_seconds_count", "tiny", "1"): 80,
        ("blink_scheduler_gap_seconds_sum", "tiny", "1"): 0.004,
        ("blink_agent_turns_total", "tiny", "1"): 50,
        ("blink_agent_reads_total", "tiny", "1"): 70,
        ("blink_agent_read_bytes_total", "tiny", "1"): 1400,
        ("blink_agent_writes_total", "tiny", "1"): 20,
        ("blink_agent_written_bytes_total", "tiny", "1"): 300,
        ("blink_agent_reconnections_total", "tiny", "1"): 1,
        ("blink_graph_launches_total", "8", "tiny", "decode", "1"): 90,
        ("blink_graph_launches_total", "2x64", "tiny", "prefill", "1"): 6,
        ("blink_graph_launches_total", "2x64+8", "tiny", "mixed", "1"): 4,
        ("blink_ring_slots", "tiny", "EMPTY", "1"): 1,
        ("blink_ring_slots", "tiny", "PREFILL_PENDING", "1"): 1,
        ("blink_ring_slots", "tiny", "PREFILL_PROCESSING", "1"): 0,
        ("blink_ring_slots", "tiny", "DECODE_PROCESSING", "1"): 2,
        ("blink_ring_slots", "tiny", "DECODE_PAUSED", "1"): 0,
        ("blink_ring_slots", "tiny", "DECODE_COMPLETED", "1"): 0,
    }


async def test_both_text_forms_can_be_parsed_and_say_the_same(worker: Any) -> None:
    worker.serve("hello")
    assert (await worker.chat("Hi")).status_code == 200
    await worker.get("/metrics")  # so that both count one like themselves
    plain = await worker.get("/metrics")
    open_metrics = await worker.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert plain.headers["content-type"].startswith("text/plain")
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    one = {
        (sample.name, *sample.labels.items()): sample.value
        for family in text_string_to_metric_families(plain.text)
        for sample in family.samples
    }
    other = {
        (sample.name, *sample.labels.items()): sample.value
        for family in openmetrics.text_string_to_metric_families(open_metrics.text)  # type: ignore[no-untyped-call]
        for sample in family.samples
    }
    assert one.keys() == other.keys()
    assert all(str(name).startswith(("vllm:", "gen_ai_", "nv_", "blink_")) for name, *_ in one)
