"""A decoder of a tiny model with its buffers, driven like a scheduler would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blink_persistent.engines.onnx_cpu.decoder import Decoder, StepInputs
from blink_persistent.engines.onnx_cpu.graph import build_graph
from blink_persistent.engines.onnx_cpu.nodes import save
from blink_persistent.engines.onnx_cpu.session import load_model
from blink_server.testing.memory_checkpoint import MemoryCheckpoint


class DrivenDecoder:
    """Keeps each row's length; every call is one step or one prompt."""

    def __init__(self, model: Path, vocabulary: int, *, max_rows: int, context_length: int) -> None:
        self.decode_inputs = StepInputs(*(np.zeros(max_rows, np.int32) for _ in range(3)))
        self.prefill_inputs = StepInputs(
            np.zeros(context_length, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)
        )
        self.logits = np.zeros((max_rows, vocabulary), np.float32)
        self.decoder = Decoder(
            load_model(model, threads=1),
            max_rows=max_rows,
            context_length=context_length,
            decode=self.decode_inputs,
            prefill=self.prefill_inputs,
            logits=self.logits,
        )
        self.lengths = [0] * max_rows

    def prefill(self, row: int, prompt: Sequence[int], chunks: Sequence[int] | None = None) -> Any:
        """Replace the row's context by a prompt, cut into `chunks`; the last chunk's logits."""
        done = 0
        for count in chunks or [len(prompt)]:
            self.prefill_inputs.token_ids[:count] = prompt[done : done + count]
            self.prefill_inputs.start_positions[0] = done
            done += count
            self.prefill_inputs.lengths[0] = done
            self.decoder.prefill(row, count)
        assert done == len(prompt)
        self.lengths[row] = done
        return self.logits[0].copy()

    def decode(self, tokens: Mapping[int, int], rows: int | None = None) -> npt.NDArray[np.float32]:
        """Append a token to each row named; rows up to `rows` that are not named are inactive."""
        rows = rows or max(tokens) + 1
        for row in range(rows):
            active = row in tokens
            self.decode_inputs.token_ids[row] = tokens.get(row, 0)
            self.decode_inputs.start_positions[row] = self.lengths[row] if active else 0
            self.lengths[row] += active
            self.decode_inputs.lengths[row] = self.lengths[row] if active else 0
        self.decoder.decode(rows)
        return self.logits[:rows].copy()

    def cache(self, row: int) -> npt.NDArray[np.float32]:
        """The row's entries, [layers, 2, tokens, kv_heads, head_dim]."""
        return self.decoder.kv[:, :, row, :, : self.lengths[row]].swapaxes(2, 3).copy()


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[..., DrivenDecoder]]:
    """Build a checkpoint's graph and open a decoder on it."""
    opened: list[DrivenDecoder] = []

    def build_and_open(
        checkpoint: MemoryCheckpoint, *, max_rows: int = 1, weights: str = "int8"
    ) -> DrivenDecoder:
        architecture = checkpoint.architecture
        path = tmp_path / f"{len(opened)}.onnx"
        context_length = architecture.context_length
        save(build_graph(checkpoint, context_length=context_length, weights=weights), path)
        driven = DrivenDecoder(
            path,
            architecture.vocabulary_size,
            max_rows=max_rows,
            context_length=context_length,
        )
        opened.append(driven)
        return driven

    yield build_and_open
    for driven in opened:
        driven.decoder.close()
