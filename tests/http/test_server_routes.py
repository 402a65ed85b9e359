"""Models, health, version, metrics, keys."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from blink_server.backend import TokenEvent
from blink_server.errors import EngineFailure
from blink_server.http.model_entry import ServerState
from blink_server.http.settings import ServerSettings, key_digest
from blink_server.repository.harness import State


async def test_models_that_serve_are_listed_by_name_and_alias(worker: Any) -> None:
    one, two = worker.session("one"), worker.session("two")
    entries = [
        worker.entry(one, version=1),
        worker.entry(two, version=2),
        worker.entry(None, version=3, state=State.LOADING),
    ]
    worker.directory.publish(entries)
    body = (await worker.get("/v1/models")).json
    assert body["object"] == "list"
    assert [(card["id"], card["version"]) for card in body["data"]] == [("tiny", 2)]
    assert body["data"][0]["object"] == "model"
    assert body["data"][0]["max_model_len"] == 128


async def test_one_model_or_version(worker: Any) -> None:
    entries = [
        worker.entry(worker.session("one"), version=1),
        worker.entry(None, version=3, state=State.UNAVAILABLE),
    ]
    worker.directory.publish(entries)
    assert (await worker.get("/v1/models/tiny")).json["version"] == 1
    assert (await worker.get("/v1/models/tiny:1")).json["id"] == "tiny:1"
    assert (await worker.get("/v1/models/tiny:2")).status_code == 404
    unavailable = await worker.get("/v1/models/tiny:3")
    assert unavailable.status_code == 503
    assert "unavailable: out of luck" in unavailable.json["error"]["message"]
    assert (await worker.complete(model="tiny:1")).status_code == 200


async def test_ready_is_about_what_serves(worker: Any) -> None:
    async def ready(query: str = "") -> tuple[int, str]:
        result = await worker.get(f"/health/ready{query}")
        return result.status_code, result.json.get("reason", "")

    assert (await worker.get("/health/live")).status_code == 200
    assert await ready() == (503, "the server is starting: no models yet")
    loading = worker.entry(None, version=2, state=State.LOADING)
    worker.directory.publish([loading], server=ServerState.STARTING)
    assert await ready() == (503, "the server is starting: tiny:2")
    serving = worker.entry(worker.session("ok"))
    worker.directory.publish([serving, loading])
    assert await ready() == (200, "")
    assert (await worker.get("/health")).status_code == 200
    assert await ready("?model=tiny") == (200, "")
    assert await ready("?model=tiny:2") == (503, "the model 'tiny:2' is loading")
    assert (await worker.get("/health/ready?model=other")).status_code == 404
    worker.directory.publish([worker.entry(None, state=State.UNAVAILABLE)])
    assert await ready() == (503, "tiny:1 is unavailable: out of luck")
    worker.directory.publish([serving], server=ServerState.DRAINING)
    assert await ready() == (503, "the server is shutting down")
    assert (await worker.get("/health/live")).status_code == 200


async def test_a_server_without_models_is_ready(worker: Any) -> None:
    worker.directory.publish([])
    assert (await worker.get("/health/ready")).status_code == 200


async def test_version(worker: Any) -> None:
    assert (await worker.get("/version")).json["version"]


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer one", 200),
        ("bearer two", 200),
        ("Bearer three", 401),
        ("Bearer ", 401),
        ("Basic one", 401),
        (None, 401),
    ],
)
async def test_keys_guard_the_models(worker: Any, header: str | None, status: int) -> None:
    digests = frozenset({key_digest("one"), key_digest("two")})
    worker.settings = ServerSettings(api_key_digests=digests)
    session = worker.serve("ok")
    headers = {} if header is None else {"Authorization": header}
    for path in ("/v1/completions", "/v1/nothing"):
        result = await worker.post(path, {"model": "tiny", "prompt": "x"}, headers=headers)
        assert result.status_code == (404 if status == 200 and "nothing" in path else status)
    result = await worker.get("/v1/models", headers=headers)
    assert result.status_code == status
    if status == 401:
        assert result.json["error"]["code"] == "invalid_api_key"
        assert set(result.json["error"]) == {"message", "type", "param", "code"}
        assert not session.requests


@pytest.mark.parametrize(
    "path", ["/health", "/health/live", "/health/ready", "/metrics", "/version"]
)
async def test_probes_need_no_key(worker: Any, path: str) -> None:
    worker.settings = ServerSettings(api_key_digests=frozenset({key_digest("one")}))
    worker.serve("ok")
    assert (await worker.get(path)).status_code == 200


def values(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_metrics_count_tokens_requests_and_times(worker: Any) -> None:
    worker.serve("abc")
    usage = (await worker.complete(["Hello", "Hi"], n=2)).json["usage"]
    got = values((await worker.get("/metrics")).text)
    tiny = 'model_name="tiny"'
    assert got[f"vllm:prompt_tokens_total{{{tiny}}}"] == 2 * usage["prompt_tokens"]
    assert got[f"vllm:generation_tokens_total{{{tiny}}}"] == usage["completion_tokens"]
    assert got[f'vllm:request_success_total{{finished_reason="stop",{tiny}}}'] == 4
    assert got[f"vllm:num_requests_running{{{tiny}}}"] == 0
    assert got[f"vllm:num_requests_waiting{{{tiny}}}"] == 0
    assert got[f"vllm:time_to_first_token_seconds_count{{{tiny}}}"] == 4
    assert got[f"vllm:request_queue_time_seconds_sum{{{tiny}}}"] == pytest.approx(0.004)
    assert got[f"vllm:request_prefill_time_seconds_sum{{{tiny}}}"] == pytest.approx(0.012)
    assert got[f"vllm:request_decode_time_seconds_sum{{{tiny}}}"] == pytest.approx(0.016)
    assert got['nv_inference_request_success{model="tiny",version="1"}'] == 4
    assert got['nv_inference_queue_duration_us{model="tiny",version="1"}'] == 4000
    assert got[f"vllm:request_inference_time_seconds_sum{{{tiny}}}"] == pytest.approx(0.028)
    assert got[f"vllm:request_prompt_tokens_sum{{{tiny}}}"] == 2 * usage["prompt_tokens"]
    assert got[f"vllm:request_generation_tokens_sum{{{tiny}}}"] == usage["completion_tokens"]
    assert got[f'vllm:request_generation_tokens_bucket{{le="5.0",{tiny}}}'] == 4
    assert got[f"vllm:request_max_num_generation_tokens_sum{{{tiny}}}"] == 4
    assert got[f"vllm:request_params_n_sum{{{tiny}}}"] == 2
    assert got[f"vllm:request_params_max_tokens_sum{{{tiny}}}"] == 16
    labels = (
        'gen_ai_operation_name="text_completion",gen_ai_provider_name="blink",'
        'gen_ai_request_model="tiny",gen_ai_response_model="tiny:1"'
    )
    whole = f'gen_ai_server_request_duration_seconds_count{{error_type="",{labels}}}'
    assert got[whole] == 4
    assert got[f"gen_ai_server_time_per_output_token_seconds_count{{{labels}}}"] == 4
    triton = 'model="tiny",version="1"'
    assert (
        got[f"nv_inference_count{{{triton}}}"] == got[f"nv_inference_exec_count{{{triton}}}"] == 4
    )
    assert got[f"nv_inference_compute_infer_duration_us{{{triton}}}"] == 28000
    assert got[f"nv_inference_first_response_histogram_ms_count{{{triton}}}"] == 4
    route = 'method="POST",route="/v1/completions",status="200"'
    assert got[f"blink_http_responses_total{{{route}}}"] == 1


async def test_metrics_of_failures(worker: Any) -> None:
    worker.serve(lambda request: [TokenEvent([50]), EngineFailure("gone")])
    await worker.complete()
    worker.directory.publish([worker.entry(worker.session("ok", free_slots=0))])
    await worker.complete()
    session = worker.serve(lambda request: [asyncio.Event()], epoch=2)
    body = {"model": "tiny", "prompt": "x"}
    task, _ = worker.open("/v1/completions", body)
    await session.attempted(1)
    got = values((await worker.get("/metrics")).text)
    assert got['vllm:num_requests_waiting{model_name="tiny"}'] == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    got = values((await worker.get("/metrics")).text)
    failure = 'nv_inference_request_failure{model="tiny",reason="%s",version="1"}'
    assert [got[failure % name] for name in ("BACKEND", "REJECTED", "CANCELED")] == [1, 1, 1]
    errors = [name for name in got if name.startswith("gen_ai_") and "_count{error_type=" in name]
    assert {name.split('"')[1] for name in errors} == {"error", "abort"}
    assert "nv_inference_count" not in str(got.keys())
    assert got['vllm:num_requests_waiting{model_name="tiny"}'] == 0
    assert got['vllm:num_requests_running{model_name="tiny"}'] == 0


async def test_unknown_paths_make_one_label(worker: Any) -> None:
    for name in ("a", "b"):
        await worker.get(f"/nothing/{name}")
    got = values((await worker.get("/metrics")).text)
    assert got['blink_http_responses_total{method="GET",route="unknown",status="404"}'] == 2
