"""What a real server under way tells of itself: metrics, traces, logs, `top`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import yaml

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
pytest.importorskip("promql_parser")

import promql_parser as promql

from blink_server.testing.metric_lines import MetricLines
from blink_server.testing.otlp_collector import otlp_collector
from blink_server.testing.server_process import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
PAGE = MONITORING.with_suffix(".md")
MARKER = "xyzzy"
CANCELED = 'reason="CANCELED"'
TRACE = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}


@dataclass
class Observed:
    """All that one server has told from its start to its end."""

    plain: str = ""
    openmetrics: str = ""
    top: str = ""
    lines: list[str] = field(default_factory=list)
    spans: list[Any] = field(default_factory=list)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def observed(tiny_repository: Path) -> AsyncIterator[Observed]:
    directory, observed = Path(tempfile.mkdtemp(prefix="blink-")), Observed()
    with otlp_collector() as collector:
        server = await ServerProcess.start(
            tiny_repository,
            directory / "run",
            *("--log-level=debug", "--access-log=-", f"--otlp-endpoint={collector.url}"),
        )
        try:
            url = await server.ready()
            async with httpx.AsyncClient(base_url=url, timeout=60) as client:
                await traffic(client)
                observed.top = await top(url)
                observed.plain = (await client.get("/metrics")).text
                accept = {"Accept": "application/openmetrics-text"}
                observed.openmetrics = (await client.get("/metrics", headers=accept)).text
            assert await server.stop() == 0
        finally:
            server.kill_everything()
            shutil.rmtree(directory, ignore_errors=True)
    observed.lines, observed.spans = server.lines, list(collector.spans)
    print(server.output)  # shown where a test fails
    yield observed


async def traffic(client: httpx.AsyncClient) -> None:
    """The marker in every field that takes text, in requests that are served and refused."""
    says: dict[str, Any] = {"model": "tiny", "max_tokens": 8}
    chat = {**says, "messages": [{"role": "user", "content": MARKER}]}
    served = {
        "/v1/completions": {**says, "prompt": [MARKER, MARKER], "n": 2, "stop": MARKER},
        "/v1/chat/completions": {**chat, "stream": True, "user": "operator"},
        "/v1/responses": {"model": "tiny", "input": MARKER, "max_output_tokens": 8},
        "/v1/messages": {**chat, "system": MARKER},
        "/v2/models/tiny/generate": {"text_input": MARKER, "max_tokens": 8},
        "/tokenize": {"model": "tiny", "prompt": MARKER},
    }
    for path, body in served.items():
        response = await client.post(path, json=body, headers=TRACE)
        assert response.status_code == 200, response.text
    refused = [
        ("/v1/completions", {**says, "prompt": {"text": MARKER}}),
        ("/v1/completions", {**says, "prompt": MARKER * 1000}),
        ("/v1/completions", {**says, "prompt": MARKER, "stop": [MARKER, 1]}),
        ("/v1/completions", {**says, "prompt": MARKER, "stop": {MARKER: 1}}),
        ("/v1/chat/completions", {**says, "messages": MARKER}),
        ("/v1/chat/completions", {**says, "messages": [MARKER]}),
        ("/v1/chat/completions", {**says, "messages": [{"role": MARKER, "content": MARKER}]}),
        ("/v1/chat/completions", {**chat, "tools": [{"type": MARKER}]}),
        ("/v1/chat/completions", {**chat, "response_format": {"type": MARKER}}),
        ("/v1/chat/completions", {**chat, "guided_regex": f"({MARKER}"}),
        ("/v1/chat/completions", {**chat, "temperature": MARKER}),
        ("/v1/chat/completions", {**chat, MARKER: MARKER}),
        ("/v1/responses", {"model": "tiny", "input": [{"type": MARKER}]}),
        ("/v1/messages", {**chat, "system": {"text": MARKER}}),
        ("/v2/models/tiny/generate", {"text_input": [MARKER]}),
        ("/tokenize", {"model": "tiny", "prompt": [MARKER]}),
    ]
    for path, body in refused:
        await client.post(path, json=body)
    broken = f'{{"model": "tiny", "prompt": "{MARKER}'
    assert (await client.post("/v1/completions", content=broken)).status_code == 400
    long = {**chat, "max_tokens": 400, "ignore_eos": True, "stream": True}
    while CANCELED not in (await client.get("/metrics")).text:  # its client may leave too late
        async with client.stream("POST", "/v1/chat/completions", json=long) as response:
            await anext(response.aiter_bytes())


async def top(url: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "blink_server", "top", "--once", f"--url={url}"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "100"},
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def test_every_line_of_the_metrics_is_right(observed: Observed) -> None:
    plain = MetricLines(observed.plain, openmetrics=False)
    assert plain.problems == []
    openmetrics = MetricLines(observed.openmetrics, openmetrics=True)
    assert openmetrics.problems == []
    assert openmetrics.names == plain.names
    series = sum(len(family.samples) for family in plain.families.values())
    assert series < 1000  # of one version


async def test_the_page_names_every_metric_and_no_other(observed: Observed) -> None:
    _, _, table = PAGE.read_text().partition("| metric | is |\n")
    cells = [row.split("|")[1] for row in table.partition("\n\n")[0].splitlines()]
    named = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert len(named) == len(set(named))
    assert set(named) == MetricLines(observed.plain, openmetrics=False).families.keys()


async def test_no_text_of_a_request_is_logged_or_traced(observed: Observed) -> None:
    assert [line for line in observed.lines if MARKER in line] == []
    assert [span for span in observed.spans if MARKER in str(span)] == []
    logged = [json.loads(line) for line in observed.lines if line.startswith("{")]
    assert len([entry for entry in logged if entry["status"] == 400]) > 10
    assert MARKER not in observed.plain + observed.openmetrics


async def test_traces_reach_a_collector(observed: Observed) -> None:
    roots = {span.name: span for span in observed.spans if span.trace_id == b"\xab" * 16}
    assert {"text_completion tiny", "chat tiny", "queue", "prefill", "decode"} <= roots.keys()
    assert roots["chat tiny"].parent_span_id == b"\xcd" * 8
    ids = {span.span_id: span for span in observed.spans}
    stages = [span for span in observed.spans if span.name in ("queue", "prefill", "decode")]
    assert len(stages) >= 3 * 7
    for span in stages:
        root = ids[span.parent_span_id]
        assert root.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano


async def test_top_shows_it(observed: Observed) -> None:
    assert "tiny:1  READY" in observed.top
    assert "/4096 slots" in observed.top
    assert "decode 1" in observed.top
    assert "first token" in observed.top


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> Iterator[str]:
    """Every expression, with Grafana's variables filled in."""
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "5m").replace("$model", "tiny")
    yield from (rule["expr"] for rule in rules())


def parts(expression: str) -> Iterator[Any]:
    found: list[Any] = []
    promql.walk(promql.parse(expression), pre_visit=lambda node: found.append(node))
    return iter(found)


@pytest.mark.parametrize("query", [*queries()])
async def test_dashboard_and_alerts_ask_for_what_is_there(observed: Observed, query: str) -> None:
    series: dict[str, list[dict[str, str]]] = {"up": [{"job": "blink", "instance": "x"}]}
    for family in MetricLines(observed.plain, openmetrics=False).families.values():
        if family.name.startswith("blink_agent_"):  # a server without an agent has no samples
            series[family.name] = [{"model_name": "tiny", "version": "1", "job": "x"}]
        for name, labels in family.samples:
            series.setdefault(name, []).append({**dict(labels), "job": "x", "instance": "x"})
    labels: set[str] = set()
    for node in parts(query):
        if isinstance(node, promql.VectorSelector):
            assert node.name in series, f"there is no metric {node.name}"
            known = series[node.name]
            for matcher in node.matchers.matchers:
                assert matcher.name in known[0], f"{node.name} has no label {matcher.name}"
                if matcher.name in ("state", "job"):
                    assert any(each[matcher.name] == matcher.value for each in known), matcher
            labels |= known[0].keys()
        elif isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            wanted = set(node.modifier.labels)
            selectors = [n for n in parts(str(node)) if isinstance(n, promql.VectorSelector)]
            for selector in selectors:
                assert wanted <= series[selector.name][0].keys(), f"{selector.name}: {wanted}"
    assert labels


async def test_panels_and_rules_are_told_apart_and_explained() -> None:
    for panel in panels():
        assert panel["title"]
        assert panel["description"]
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
