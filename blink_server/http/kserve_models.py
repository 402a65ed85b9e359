"""What KServe's v2 protocol tells of the server and its models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import falcon
import falcon.asgi

from blink_server.http.kserve_fields import TEXT_INPUT, TEXT_OUTPUT
from blink_server.http.metrics import Metrics
from blink_server.http.model_entry import ModelEntry, ServerState
from blink_server.http.models import ModelDirectory
from blink_server.http.server_routes import server_version
from blink_server.http.triton_metrics import LAST_INFERENCE

_EXTENSIONS = [
    "binary_tensor_data",
    "generate",
    "model_configuration",
    "model_repository",
    "statistics",
]
_TENSORS = {
    "stream": ("BOOL", "TYPE_BOOL"),
    "sampling_parameters": ("BYTES", "TYPE_STRING"),
    "exclude_input_in_output": ("BOOL", "TYPE_BOOL"),
}


def version_name(path: Mapping[str, str]) -> str:
    """What the directory calls what a route names: `model`, or with `version` that one."""
    model, version = path["model"], path.get("version")
    return model if version is None else f"{model}:{version}"


def reply(resp: falcon.asgi.Response, body: Any) -> None:
    """Answer with JSON."""
    resp.content_type = falcon.MEDIA_JSON
    resp.data = json.dumps(body).encode()


class KServeServerResource:
    """GET /v2, /v2/health/live and /v2/health/ready."""

    def __init__(self, directory: ModelDirectory) -> None:
        self._directory = directory
        self._version = server_version()

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Name, version and extensions."""
        reply(resp, {"name": "blink-server", "version": self._version, "extensions": _EXTENSIONS})

    async def on_get_live(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """200 while this process answers at all."""
        reply(resp, {"live": True})


class KServeModelResource:
    """GET /v2/models/{model}[/versions/{version}], .../ready, .../config and .../stats."""

    def __init__(self, directory: ModelDirectory, metrics: Metrics) -> None:
        self._directory = directory
        self._metrics = metrics

    async def on_get(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, **path: str
    ) -> None:
        """Inputs and outputs. Raises `UnknownModel`."""
        entry = self._directory.find(version_name(path))
        inputs = [_metadata(TEXT_INPUT, "BYTES")]
        inputs += [
            {**_metadata(name, kind), "optional": True} for name, (kind, _) in _TENSORS.items()
        ]
        name = entry.version.model
        versions = [e.version.version for e in self._directory.entries if e.version.model == name]
        reply(
            resp,
            {
                "name": name,
                "versions": [str(each) for each in versions],
                "platform": entry.version.config.get("backend", ""),
                "inputs": inputs,
                "outputs": [_metadata(TEXT_OUTPUT, "BYTES")],
            },
        )

    async def on_get_ready(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, **path: str
    ) -> None:
        """200 while new requests may have it, else 503; raises `UnknownModel`."""
        entry = self._directory.find(version_name(path))
        ready = entry.serves and self._directory.server is not ServerState.DRAINING
        reply(resp, {"name": entry.version.model, "ready": ready})
        resp.status = falcon.HTTP_200 if ready else falcon.HTTP_503

    async def on_get_config(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, **path: str
    ) -> None:
        """Triton's form of a configuration; parameters.config has the effective config.json."""
        entry = self._directory.find(version_name(path))
        reply(resp, _config(entry))

    async def on_get_stats(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, **path: str
    ) -> None:
        """Triton's counters of one version, of all of a model's, or of all."""
        entries = self._directory.entries
        if path:
            found = self._directory.find(version_name(path)).version
            entries = [e for e in entries if e.version.model == found.model]
            if "version" in path:
                entries = [e for e in entries if e.version.version == found.version]
        totals = await self._metrics.triton_totals()
        reply(resp, {"model_stats": [_statistics(entry, totals) for entry in entries]})


def _metadata(name: str, datatype: str) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [-1]}


def _config(entry: ModelEntry) -> dict[str, Any]:
    version = entry.version
    inputs: list[dict[str, Any]] = [{"name": TEXT_INPUT, "data_type": "TYPE_STRING", "dims": [-1]}]
    inputs += [
        {"name": name, "data_type": kind, "dims": [-1], "optional": True}
        for name, (_, kind) in _TENSORS.items()
    ]
    return {
        "name": version.model,
        "platform": "",
        "backend": version.config.get("backend", ""),
        "max_batch_size": 0,
        "version_policy": {"specific": {"versions": [version.version]}},
        "input": inputs,
        "output": [{"name": TEXT_OUTPUT, "data_type": "TYPE_STRING", "dims": [-1]}],
        "model_transaction_policy": {"decoupled": True},
        "parameters": {"config": {"string_value": json.dumps(dict(version.config))}},
    }


def _statistics(entry: ModelEntry, totals: Mapping[tuple[str, str, str], float]) -> dict[str, Any]:
    key = entry.version.model, str(entry.version.version)

    def total(name: str) -> int:
        return int(totals.get((name, *key), 0))

    def duration(count: int, microseconds: int) -> dict[str, int]:
        return {"count": count, "ns": microseconds * 1000}

    success = total("nv_inference_request_success")

    def stage(name: str) -> dict[str, int]:
        return duration(success, total(f"nv_inference_{name}_duration_us"))

    nothing = duration(0, 0)
    return {
        "name": key[0],
        "version": key[1],
        "last_inference": int(totals.get((LAST_INFERENCE, *key), 0.0) * 1e3),
        "inference_count": total("nv_inference_count"),
        "execution_count": total("nv_inference_exec_count"),
        "inference_stats": {
            "success": stage("request"),
            "fail": duration(total("nv_inference_request_failure"), 0),
            "queue": stage("queue"),
            "compute_input": stage("compute_input"),
            "compute_infer": stage("compute_infer"),
            "compute_output": stage("compute_output"),
            "cache_hit": nothing,
            "cache_miss": nothing,
        },
        "batch_stats": [],
    }
