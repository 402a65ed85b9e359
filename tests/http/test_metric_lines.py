"""Every line of /metrics, in both of its forms, as strictly as promtool reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blink_server.errors import EngineFailure
from blink_server.repository.harness import State
from blink_server.testing.fake_backend import SLOTS, STATS
from blink_server.testing.metric_lines import MetricLines

FORMS = [("text/plain", False), ("application/openmetrics-text", True)]


async def lines(worker: Any, accept: str = "text/plain", *, openmetrics: bool = False) -> Any:
    text = (await worker.get("/metrics", headers={"Accept": accept})).text
    return MetricLines(text, openmetrics=openmetrics)


@pytest.mark.parametrize(("accept", "openmetrics"), FORMS)
async def test_every_line_is_right(
    worker: Any, monkeypatch: pytest.MonkeyPatch, accept: str, openmetrics: bool
) -> None:
    session = worker.serve("hello")
    monkeypatch.setattr(session, "stats", lambda: STATS)
    monkeypatch.setattr(session, "slots", lambda: SLOTS)
    await worker.chat("Hi")
    await worker.complete(['a "quoted" one', "another"], n=2)
    failing = worker.session(lambda request: [EngineFailure("gone")])
    worker.directory.publish([worker.entry(session), worker.entry(failing, version=2)])
    await worker.complete()
    found = await lines(worker, accept, openmetrics=openmetrics)
    assert found.problems == []
    silent = {name for name, family in found.families.items() if not family.samples}
    assert silent <= {"nv_model_load_duration_secs"}  # nothing was loaded


async def test_a_version_that_is_swapped_has_its_series_once(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two loads of a version are in service, and what is on disk now is broken."""
    old, new = worker.session("hello"), worker.session("hello")
    for session, steps in ((old, 1), (new, 2)):
        stats = replace(STATS, steps=steps)
        monkeypatch.setattr(session, "stats", lambda stats=stats: stats)
        monkeypatch.setattr(session, "slots", lambda: SLOTS)
    worker.directory.publish(
        [
            replace(worker.entry(None, epoch=0, state=State.UNAVAILABLE), load_seconds=1.0),
            replace(worker.entry(new, epoch=2), load_seconds=3.0),
            replace(worker.entry(old, epoch=1, state=State.DRAINING), load_seconds=2.0),
        ]
    )
    found = await lines(worker)
    assert found.problems == []
    values = {
        (name, *dict(labels).values()): value
        for family in found.families.values()
        for (name, labels), value in family.samples.items()
    }
    assert values["blink_scheduler_steps_total", "tiny", "1"] == 2
    assert values["nv_model_load_duration_secs", "tiny", "1"] == 3
    states = {key[2]: value for key, value in values.items() if key[0] == "blink_model_state"}
    assert [state for state, value in states.items() if value] == ["READY"]


async def test_clients_cannot_make_series(worker: Any) -> None:
    """What they write into paths, methods and fields becomes no label's value."""
    worker.serve("hello")

    async def ask(word: str) -> None:
        body = {"prompt": word, "user": word, "max_tokens": 5, "temperature": 0.0}
        await worker.post("/v1/completions", {"model": "tiny", **body})
        await worker.post("/v1/completions", {"model": word, **body})
        await worker.post("/v1/chat/completions", {"model": "tiny", "messages": word})
        await worker.post(f"/v2/models/{word}/generate", {"text_input": word})
        await worker.get(f"/{word}")
        await worker.get(f"/v1/models/{word}", headers={"X-Request-Id": word})
        async with worker.client as conductor:
            await conductor.simulate_request("PROPFIND", f"/{word}")
            await conductor.simulate_request("PROPFIND", "/v1/models")

    async def series() -> set[Any]:
        found = await lines(worker)
        return {key for family in found.families.values() for key in family.samples}

    await ask("first")
    await lines(worker)  # so that its own response is counted
    before = await series()
    for number in range(3):
        await ask(f"word{number}")
    assert await series() == before


BROKEN = {
    "a 1\n": "is not below its TYPE",
    "# HELP a x\n# TYPE a gauge\na 1": "the last line has no end",
    "# HELP a x\n# TYPE a gauge\na 1\na 2\n": "was there before",
    "# HELP a x\n# TYPE a gauge\n# TYPE a gauge\n": "comes again",
    "# HELP a x\n# TYPE a gauge\n# HELP b x\n# TYPE b gauge\n# HELP a x\n": "comes again",
    "# HELP a x\na 1\n": "lacks HELP or TYPE",
    "# HELP a x\n# TYPE a counter\na 1\n": "_total",
    "# HELP a_total x\n# TYPE a_total gauge\na_total 1\n": "_total",
    "# HELP a_ms x\n# TYPE a_ms gauge\na_ms 1\n": "base unit",
    "# HELP a x\n# TYPE a gauge\na{b=c} 1\n": "cannot be read",
    '# HELP a x\n# TYPE a gauge\na{b="c",b="d"} 1\n': "cannot be read",
    "# HELP a x\n# TYPE a gauge\na -1\n": "is -1.0",
    '# HELP a x\n# TYPE a gauge\na 1 # {x="y"} 1\n': "exemplar",
    '# HELP a x\n# TYPE a histogram\na_bucket{le="1"} 1\na_sum 1\n': "without a count",
    '# HELP a x\n# TYPE a histogram\na_bucket{le="+Inf"} 1\na_count 2\na_sum 1\n': "last bucket",
    '# HELP a x\n# TYPE a histogram\na_bucket{le="+Inf"} 1\na_count 1\n': "no sum",
}


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_the_check_finds_what_is_wrong(text: str) -> None:
    problems = MetricLines(text, openmetrics=False).problems
    assert any(BROKEN[text] in problem for problem in problems), problems
