"""What this package offers through the plugin door; heavy imports wait until something is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blink_server.backend import Backend, Endpoint, ModelVersion, Session
from blink_server.hookspecs import Connect, Factory, SamplerFactory, hookimpl


def _onnx_cpu() -> Any:
    from blink_persistent.engines.onnx_cpu.engine import OnnxCpuEngine

    return OnnxCpuEngine()


def _cuda() -> Any:
    from blink_persistent.engines.cuda.engine import CudaEngine

    return CudaEngine()


def _tensorrt() -> Any:
    from blink_persistent.engines.tensorrt.engine import TensorRtEngine

    return TensorRtEngine()


def _scripted() -> Any:
    from blink_persistent.engines.scripted import ScriptedEngine

    return ScriptedEngine()


def _default_sampler(options: Mapping[str, Any]) -> Any:
    from blink_persistent.samplers.default import DefaultSampler

    return DefaultSampler()


def _random(source: str, **options: Any) -> Any:
    from blink_persistent.engines.random_checkpoint import open_random

    return open_random(source, **options)


async def _shm(version: ModelVersion, endpoint: Endpoint) -> Session:
    from blink_persistent.frontend.shm import connect

    return await connect(version, endpoint)


@hookimpl
def blink_engines() -> Mapping[str, Factory]:
    """`onnx_cpu`, `cuda`, `tensorrt`, `scripted`."""
    return {
        **{"onnx_cpu": _onnx_cpu, "cuda": _cuda},
        **{"tensorrt": _tensorrt, "scripted": _scripted},
    }


@hookimpl
def blink_samplers() -> Mapping[str, SamplerFactory]:
    """`default`."""
    return {"default": _default_sampler}


@hookimpl
def blink_transports() -> Mapping[str, Connect]:
    """`shm`: a ring in this machine's memory."""
    return {"shm": _shm}


@hookimpl
def blink_importers() -> Mapping[str, Any]:
    """`random`: random weights in the shape of a published model."""
    return {"random": _random}


@hookimpl
def blink_backends(
    engines: Mapping[str, Factory],
    samplers: Mapping[str, SamplerFactory],
    transports: Mapping[str, Connect],
) -> Sequence[Backend]:
    """`blink_persistent`."""
    from blink_persistent.backend import PersistentBackend

    return [PersistentBackend(engines, samplers, transports)]
