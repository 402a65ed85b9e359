"""Metrics of the schedulers and their rings, read through the sessions when somebody asks.

They are the same in every worker, so whichever answers says them for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from blink_server.backend import SLOT_STATES, GraphLaunches, SchedulerStats
from blink_server.http.models import ModelDirectory

_LABELS = ("model_name", "version")
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

_AGENT = {
    "agent_turns": "Times that the agent looked at mirror and ring",
    "agent_reads": "Spans that the agent read from the ring",
    "agent_read_bytes": "Bytes of these",
    "agent_writes": "Writes of the agent to the ring",
    "agent_written_bytes": "Bytes of these",
    "agent_reconnections": "Connections to the ring made again",
}

Found = Sequence[tuple[tuple[str, str], SchedulerStats]]


def scheduler_families(directory: ModelDirectory) -> Iterator[Metric]:
    """Everything that `SchedulerStats` and `SlotTable` say, for each version in service."""
    found = list(_stats(directory))
    yield _gauge("vllm:kv_cache_usage_perc", "KV memory in use, 0 to 1", found, "kv_usage")
    yield _cache_config(found)
    yield _step_tokens(found)
    yield _counter("vllm:num_preemptions", "Requests paused for others", found, "preemptions")
    yield _gauge("blink_scheduler_rows", "Requests a decode step can serve", found, "rows")
    yield _gauge("blink_scheduler_rows_used", "Requests that have a row", found, "rows_used")
    yield _gauge("blink_scheduler_waiting", "Requests waiting for a row", found, "waiting")
    pending = "nv_inference_pending_request_count", "Requests waiting for a row"
    yield _gauge(*pending, found, "waiting", labels=("model", "version"))
    yield _counter("blink_scheduler_steps", "Steps taken", found, "steps")
    yield _counter("blink_scheduler_parks", "Times it stood still for a load", found, "parks")
    yield _counter("blink_tail_launches", "Launch windows used up", found, "tail_launches")
    yield _counter("blink_launch_retries", "Launches tried again", found, "launch_retries")
    yield _gaps(found)
    yield _launches(found)
    through_agents = [each for each in found if each[1].agent_turns]
    for field, text in _AGENT.items():
        yield _counter(f"blink_{field}", text, through_agents, field)
    yield _slots(directory)


def graph_label(graph: GraphLaunches) -> str:
    """A graph's key in one word: rows of a decode step, sequences x tokens of a prefill, both."""
    if graph.phase == "decode":
        return str(graph.sequences)
    return f"{graph.sequences}x{graph.tokens}" + (f"+{graph.rows}" if graph.rows else "")


def _stats(directory: ModelDirectory) -> Iterator[tuple[tuple[str, str], SchedulerStats]]:
    for entry in directory.entries:
        stats = entry.stats()
        if stats is not None:
            yield (entry.version.model, str(entry.version.version)), stats


def _gauge(
    name: str, text: str, found: Found, field: str, labels: Sequence[str] = _LABELS
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, stats in found:
        family.add_metric(values, getattr(stats, field))
    return family


def _counter(name: str, text: str, found: Found, field: str) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=_LABELS)
    for labels, stats in found:
        family.add_metric(labels, getattr(stats, field))
    return family


def _cache_config(found: Found) -> InfoMetricFamily:
    family = InfoMetricFamily("vllm:cache_config", "Size of the KV memory", labels=_LABELS)
    for labels, stats in found:
        if stats.kv_blocks:
            blocks, size = str(stats.kv_blocks), str(stats.kv_block_tokens)
            family.add_metric(labels, {"num_gpu_blocks": blocks, "block_size": size})
    return family


def _step_tokens(found: Found) -> HistogramMetricFamily:
    family = HistogramMetricFamily(
        "vllm:iteration_tokens_total",
        "Tokens of a step; buckets by what its graph has room for",
        labels=_LABELS,
    )
    for labels, stats in found:
        buckets = [
            (str(float(most)), sum(g.launches for g in stats.graphs if g.tokens + g.rows <= most))
            for most in _STEP_TOKENS
        ]
        buckets.append(("+Inf", sum(graph.launches for graph in stats.graphs)))
        family.add_metric(labels, buckets, stats.prompt_tokens + stats.generated_tokens)
    return family


def _gaps(found: Found) -> SummaryMetricFamily:
    family = SummaryMetricFamily(
        "blink_scheduler_gap_seconds", "Time between a step and the next", labels=_LABELS
    )
    for labels, stats in found:
        family.add_metric(labels, stats.gaps, stats.gap_seconds)
    return family


def _launches(found: Found) -> CounterMetricFamily:
    family = CounterMetricFamily(
        "blink_graph_launches", "Graphs launched", labels=(*_LABELS, "phase", "key")
    )
    for labels, stats in found:
        for graph in stats.graphs:
            family.add_metric((*labels, graph.phase, graph_label(graph)), graph.launches)
    return family


def _slots(directory: ModelDirectory) -> GaugeMetricFamily:
    family = GaugeMetricFamily("blink_ring_slots", "Slots by state", labels=(*_LABELS, "state"))
    for entry in directory.entries:
        table = entry.slots()
        if table is None:
            continue
        counts = np.bincount(table.states, minlength=len(SLOT_STATES)).tolist()
        for state, count in zip(SLOT_STATES, counts, strict=True):
            labels = entry.version.model, str(entry.version.version), state
            family.add_metric(labels, count)
    return family
