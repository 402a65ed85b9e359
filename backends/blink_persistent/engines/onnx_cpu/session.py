"""Loads a built graph into ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnxruntime

from blink_persistent.engines.onnx_cpu.metadata import ModelShape
from blink_server.errors import InvalidModel, Problem


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A graph ready to run on `threads` CPU threads."""

    path: Path
    session: onnxruntime.InferenceSession
    shape: ModelShape


def load_model(path: Path, *, threads: int) -> LoadedModel:
    """Load and optimise a graph that `graph.build_graph` made.

    Raises `InvalidModel` if the file cannot be loaded or is of another format of the builder.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3  # errors
    # Spinning threads make a step a fifth faster; between steps the cores are the workers'.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions have no common base of their own
        expected = f"must be an ONNX model that ONNX Runtime can load ({error})"
        raise InvalidModel([Problem(path, "", None, expected)]) from error
    metadata = session.get_modelmeta().custom_metadata_map
    return LoadedModel(path, session, ModelShape.from_metadata(metadata, path))
