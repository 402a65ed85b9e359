"""The schedulers' part of /metrics."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from blink_server.backend import SchedulerStats

STATS = SchedulerStats(
    rows=8,
    rows_used=3,
    waiting=2,
    kv_usage=0.375,
    steps=100,
    decode_launches=90,
    prefill_launches=10,
    tail_launches=1,
    launch_retries=4,
    preemptions=5,
)


async def test_every_field_is_exposed_for_each_version(worker: Any, monkeypatch: Any) -> None:
    session = worker.session("hello")
    monkeypatch.setattr(session, "stats", lambda: STATS)
    silent = worker.session("hello")
    worker.directory.publish([worker.entry(session, version=1), worker.entry(silent, version=2)])
    text = (await worker.get("/metrics")).text
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(("blink_", "vllm:kv", "vllm:num_pre"))
        and sample.name != "blink_model_state"
        and sample.labels.get("version")
    }
    assert found == {
        ("vllm:kv_cache_usage_perc", "tiny", "1"): 0.375,
        ("vllm:num_preemptions_total", "tiny", "1"): 5,
        ("blink_scheduler_rows", "tiny", "1"): 8,
        ("blink_scheduler_rows_used", "tiny", "1"): 3,
        ("blink_scheduler_waiting", "tiny", "1"): 2,
        ("blink_scheduler_steps_total", "tiny", "1"): 100,
        ("blink_tail_launches_total", "tiny", "1"): 1,
        ("blink_launch_retries_total", "tiny", "1"): 4,
        ("blink_graph_launches_total", "tiny", "decode", "1"): 90,
        ("blink_graph_launches_total", "tiny", "prefill", "1"): 10,
    }
