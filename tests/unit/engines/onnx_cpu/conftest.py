"""Decoders of tiny models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blink_persistent.engines.onnx_cpu.graph import write_graph
from blink_persistent.testing.driven_decoder import DrivenDecoder
from blink_server.testing.memory_checkpoint import MemoryCheckpoint


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[..., DrivenDecoder]]:
    """Build a checkpoint's graph and open a decoder on it."""
    opened: list[DrivenDecoder] = []

    def build_and_open(
        checkpoint: MemoryCheckpoint, *, max_rows: int = 1, compute: str = "int8"
    ) -> DrivenDecoder:
        path = tmp_path / f"{len(opened)}.onnx"
        context_length = checkpoint.architecture.context_length
        write_graph(checkpoint, path, context_length=context_length, compute=compute)
        driven = DrivenDecoder(path, max_rows=max_rows)
        opened.append(driven)
        return driven

    yield build_and_open
    for driven in opened:
        driven.decoder.close()
