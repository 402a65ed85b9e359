"""Builds a plan with TensorRT for RTX, without a GPU, and tells the layers that it came to.

A plan must be loaded on a GPU before TensorRT's inspector says its layers, but the builder logs the
same lines. It logs to the first logger of a process, so each plan is built in one of its own.
"""

from __future__ import annotations

import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes

from blink_persistent.engines.tensorrt.native_attention import NativeAttention
from blink_persistent.engines.tensorrt.network import Pages, build_network
from blink_persistent.engines.tensorrt.plan_builder import PlanShape, write_plan
from blink_persistent.engines.tensorrt.plan_description import StepRange
from blink_persistent.engines.tensorrt.weights import NetworkWeights
from blink_server.importers.checkpoint import Architecture
from blink_server.testing.memory_checkpoint import random_checkpoint

_LINE = re.compile(
    r"^Name: (?P<name>.*?), LayerType: (?P<kind>\w+), Inputs: \[(?P<inputs>.*?)\], "
    r"Constants: \[(?P<constants>.*?)\], Outputs: \[(?P<outputs>.*?)\], TacticName: ",
    re.MULTILINE,
)
_TENSOR = re.compile(r"Name: (?P<name>[^,]+?)(?: \[profile \d+\])?, Dimensions.*?Datatype: (\w+)")


@dataclass(frozen=True, slots=True)
class PlanLayer:
    """One kernel or copy of a plan; tensors by name, with their types."""

    name: str
    kind: str  # gemm, kgen, runtime_fusion, copy ...
    inputs: dict[str, str]
    constants: dict[str, str]
    outputs: dict[str, str]


def plan_layers(architecture: Architecture, target: str) -> list[PlanLayer]:
    """The layers of both profiles of a plan with random bfloat16 weights and native attention.

    `target`: as "sm_89". Raises EngineFailure where TensorRT does not build it.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(_build, architecture, target).result()


def _build(architecture: Architecture, target: str) -> list[PlanLayer]:
    import tensorrt_rtx as trt

    logger = _collector(trt)
    builder = trt.Builder(logger)
    tensors = random_checkpoint(architecture).dequantized()
    weights = NetworkWeights({n: t.astype(ml_dtypes.bfloat16) for n, t in tensors.items()})
    pages = Pages(16, architecture.context_length // 16)
    decoder = build_network(trt, builder, architecture, weights, pages, NativeAttention)
    shape = PlanShape(
        architecture=architecture,
        pages=pages,
        decode=StepRange(sequences=8, tokens=8),
        prefill=StepRange(sequences=4, tokens=64),
    )
    with TemporaryDirectory() as directory:
        write_plan(
            trt,
            builder,
            decoder.network,
            shape,
            Path(directory) / "model.plan",
            logger=logger,
            target=target,
            timings=None,
            report=lambda fraction: None,
        )
    (listing,) = (line for line in logger.lines if line.startswith("Layers:"))
    return [
        PlanLayer(
            found["name"],
            found["kind"],
            *(dict(_TENSOR.findall(found[part])) for part in ("inputs", "constants", "outputs")),
        )
        for found in _LINE.finditer(listing)
    ]


def _collector(trt: Any) -> Any:
    class Collector(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.lines: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            self.lines.append(msg)

        def explanation(self) -> str:
            return "; ".join(self.lines[-3:])

    return Collector()
