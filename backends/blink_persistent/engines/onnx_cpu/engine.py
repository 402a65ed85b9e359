"""The engine `onnx_cpu`: a decoder graph run by ONNX Runtime on this machine's CPU.

Its options in config.json's "engine", all written by `build`: file, the graph's name in the
version directory; kv_bytes_per_token, what one entry of one row takes in memory; compute, what the
graph was built to multiply in, "int8" (the default) or "fp32".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blink_persistent.engines import EngineShape, Launch, ProvisionLimits
from blink_persistent.engines.onnx_cpu.checks import LONGEST_CONTEXT, rotary_positions
from blink_persistent.engines.onnx_cpu.graph_file import read_model_shape
from blink_persistent.engines.onnx_cpu.metadata import COMPUTES, Compute
from blink_persistent.graph_grid import DECODE, PREFILL, GraphGrid, GraphKey
from blink_server.backend import BuildResult, ModelVersion
from blink_server.config import load_graph_grid
from blink_server.errors import InvalidModel, Problem

if TYPE_CHECKING:
    from pathlib import Path

    from blink_persistent.engines.onnx_cpu.session import LoadedModel
    from blink_server.importers.checkpoint import Architecture, Checkpoint

MODEL_FILE = "model.onnx"
_DEFAULT_CONTEXT, _DEFAULT_ROWS, _DEFAULT_CHUNK = 2048, 8, 256
_OPTIONS = ("name", "file", "kv_bytes_per_token", "compute")
_BUILD_OPTIONS = ("compute",)

# Weights are held in the kernels' own order; embeddings and small parts stay beside them.
_BYTES_PER_FILE_BYTE = 1.5
_RUNTIME_BYTES = 160 << 20  # interpreter, libraries, activations of the largest chunk


class OnnxCpuProvisioned:
    """The engine in service: a row is a KV slab, and a launched graph is one call."""

    def __init__(
        self, version: ModelVersion, grid: GraphGrid, model: LoadedModel, limits: ProvisionLimits
    ) -> None:
        from blink_persistent.engines.onnx_cpu.decoder import Decoder, StepInputs

        context_length = version.config["limits"]["context_length"]
        self.shape = EngineShape(
            grid=grid.without_mixed(),
            context_length=context_length,
            vocabulary_size=model.shape.vocabulary_size,
            eos_token_ids=tuple(version.config["eos_token_ids"]),
            block_size=context_length,
            block_count=1,
            rows_movable=False,
            deterministic=version.config["deterministic"],
            prefill_chunk=version.config["limits"].get("prefill_chunk", 0),
        )
        self.host = self.shape.host_engine()
        inputs = {}
        for phase in (DECODE, PREFILL):
            arrays = self.host.arrays(phase)
            names = ("token_ids", "start_positions", "lengths")
            inputs[phase] = StepInputs(*(arrays[name] for name in names))
        self._rows = self.host.arrays(PREFILL)["rows"]
        self._chunk_ends = self.host.arrays(PREFILL)["cu_seqlens"]
        self._logits = np.zeros((grid.max_rows, model.shape.vocabulary_size), np.float32)
        self._sampling = limits.sampler.host(self.host)
        self._decoder = Decoder(
            model,
            max_rows=grid.max_rows,
            context_length=context_length,
            decode=inputs[DECODE],
            prefill=inputs[PREFILL],
            logits=self._logits,
        )

    def step(self, launch: Launch) -> None:
        """Run the decoder on the step buffers and sample. Raises `EngineFailure`."""
        if launch.phase == DECODE:
            self._decoder.decode(launch.sequences)
        else:
            self._decoder.prefill(int(self._rows[0]), int(self._chunk_ends[1]))
        self._sampling.sample(launch.phase, launch.sequences, self._logits)

    def close(self) -> None:
        """Give the model and the KV slabs back."""
        self._decoder.close()


class OnnxCpuEngine:
    """Fulfils `Engine`."""

    def check(self, version: ModelVersion) -> Sequence[Problem]:
        """Options that are missing, unknown or ill-typed, a grid that packs prompts.

        With right options, also a graph that is cut short, or was built for something else than
        config.json says; of its file only the metadata is read.
        """
        file, options = version.directory / "config.json", version.config["engine"]
        problems = [
            Problem(file, f"engine.{name}", options[name], f"use one of {', '.join(_OPTIONS)}")
            for name in options
            if name not in _OPTIONS
        ]
        if "file" not in options:
            expected = f"is missing: the graph's name, {MODEL_FILE!r} as the import writes it"
            problems.append(Problem(file, "engine.file", None, expected))
        entry_bytes = options.get("kv_bytes_per_token")
        if type(entry_bytes) is not int or entry_bytes <= 0:
            expected = "must be a whole number above 0, as the import wrote it"
            problems.append(Problem(file, "engine.kv_bytes_per_token", entry_bytes, expected))
        problems += _compute_problems(file, "engine.compute", options)
        problems += [] if problems else _graph_problems(version)
        grid = GraphGrid.from_json(load_graph_grid(version.directory))
        if grid.max_sequences != 1:
            file = version.directory / "graph_grid.json"
            expected = "must be 1: onnx_cpu reads one prompt a step"
            problems.append(Problem(file, "prefill.sequences", grid.max_sequences, expected))
        return problems

    def place(self, version: ModelVersion) -> None:
        """It runs on the host's CPU."""

    def estimate(self, version: ModelVersion) -> int:
        """Bytes when every row is full: KV slabs, weights, logits, the runtime itself."""
        limits = version.config["limits"]
        entries = limits["max_rows"] * limits["context_length"]
        path = _model_path(version)
        weights = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
        slabs: int = entries * version.config["engine"]["kv_bytes_per_token"]
        return int(weights * _BYTES_PER_FILE_BYTE) + slabs + _RUNTIME_BYTES

    def build(
        self,
        checkpoint: Checkpoint,
        directory: Path,
        *,
        limits: Mapping[str, Any],
        options: Mapping[str, Any],
        progress: Callable[[str, float], None],
    ) -> BuildResult:
        """Write the graph; of the options, `compute` can be asked for.

        Raises `InvalidModel` for a checkpoint, limits or options it cannot serve.
        """
        from blink_persistent.engines.onnx_cpu.graph import model_shape, write_graph

        architecture = checkpoint.architecture
        chosen = _choose_limits(architecture, limits, directory)
        compute = _choose_compute(options, directory)
        notes: list[str] = []
        files = write_graph(
            checkpoint,
            directory / MODEL_FILE,
            context_length=rotary_positions(architecture.context_length, chosen["context_length"]),
            compute=compute,
            progress=lambda fraction: progress("graph", fraction),
            note=notes.append,
        )
        entry_bytes = model_shape(architecture, architecture.context_length).entry_bytes
        engine = {
            "name": "onnx_cpu",
            "file": MODEL_FILE,
            "kv_bytes_per_token": entry_bytes,
            "compute": compute,
        }
        grid = _grid(chosen["max_rows"], chosen["max_prefill_tokens"])
        return BuildResult(files, {"engine": engine, "limits": chosen}, grid.to_json(), notes)

    def provision(
        self,
        version: ModelVersion,
        grid: GraphGrid,
        limits: ProvisionLimits,
        *,
        progress: Callable[[str, float], None],
    ) -> OnnxCpuProvisioned:
        """Load the graph and map the slabs. Raises `InvalidModel`."""
        from blink_persistent.engines.onnx_cpu.session import load_model

        if problems := self.check(version):
            raise InvalidModel(list(problems))
        progress("load", 0.0)
        model = load_model(_model_path(version), threads=limits.threads)
        provisioned = OnnxCpuProvisioned(version, grid, model, limits)
        progress("load", 1.0)
        return provisioned


def _model_path(version: ModelVersion) -> Path:
    name: str = version.config["engine"]["file"]
    return version.directory / name


def _compute_problems(file: Path, field: str, options: Mapping[str, Any]) -> list[Problem]:
    compute = options.get("compute", "int8")
    if compute in COMPUTES:
        return []
    return [Problem(file, field, compute, f"must be one of {', '.join(COMPUTES)}")]


def _choose_compute(options: Mapping[str, Any], directory: Path) -> Compute:
    """What was asked for, or int8."""
    problems = [
        Problem(directory, name, options[name], f"this engine is built with {_BUILD_OPTIONS[0]}")
        for name in options
        if name not in _BUILD_OPTIONS
    ]
    problems += _compute_problems(directory, "compute", options)
    if problems:
        raise InvalidModel(problems)
    compute: Compute = options.get("compute", "int8")
    return compute


def _graph_problems(version: ModelVersion) -> list[Problem]:
    """Where config.json asks for another graph than there is."""
    path, file = _model_path(version), version.directory / "config.json"
    try:
        shape = read_model_shape(path)
    except InvalidModel as error:
        return error.problems
    problems = []
    context, engine = version.config["limits"]["context_length"], version.config["engine"]
    if context > shape.context_length:
        expected = f"must be at most {shape.context_length}, what {path.name} was built for"
        problems.append(Problem(file, "limits.context_length", context, expected))
    if engine["kv_bytes_per_token"] != shape.entry_bytes:
        expected = f"must be {shape.entry_bytes}, as {path.name} has it"
        found = engine["kv_bytes_per_token"]
        problems.append(Problem(file, "engine.kv_bytes_per_token", found, expected))
    if (wanted := engine.get("compute", "int8")) != shape.compute:
        expected = (
            f"{path.name} was built for {shape.compute!r}: "
            f"say so, or import the model again with --compute {wanted}"
        )
        problems.append(Problem(file, "engine.compute", wanted, expected))
    return problems


def _choose_limits(
    architecture: Architecture, limits: Mapping[str, Any], directory: Path
) -> dict[str, Any]:
    """The limits asked for, and this engine's choice of what was not."""
    context_length = limits.get(
        "context_length", min(architecture.context_length, _DEFAULT_CONTEXT)
    )
    longest, whose = architecture.context_length, "the model's"
    if longest > LONGEST_CONTEXT:
        longest, whose = LONGEST_CONTEXT, "this engine's"
    if not 2 <= context_length <= longest:
        expected = f"must be from 2 to {whose} {longest}"
        problem = Problem(directory, "limits.context_length", context_length, expected)
        raise InvalidModel([problem])
    chosen = {
        "context_length": context_length,
        "max_rows": _DEFAULT_ROWS,
        "max_prefill_tokens": min(_DEFAULT_CHUNK, context_length),
    }
    return chosen | dict(limits)


def _grid(max_rows: int, max_prefill_tokens: int) -> GraphGrid:
    """A decode key for every number of rows, since an unused row costs nearly what a used one does.

    One prefill key: a chunk is computed at its own length.
    """
    decode = [GraphKey(DECODE, rows, rows) for rows in range(1, max_rows + 1)]
    return GraphGrid((*decode, GraphKey(PREFILL, 1, max_prefill_tokens)))
