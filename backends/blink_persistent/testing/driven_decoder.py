"""A decoder of the engine `onnx_cpu` with its buffers, driven as a scheduler would, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from blink_persistent.engines.onnx_cpu.decoder import Decoder, StepInputs
from blink_persistent.engines.onnx_cpu.session import load_model

Array = npt.NDArray[np.float32]


class DrivenDecoder:
    """Keeps each row's length; every call is one step or one prompt."""

    def __init__(
        self, path: Path, *, max_rows: int = 1, context_length: int | None = None, threads: int = 1
    ) -> None:
        """`context_length` is the model's largest by default."""
        model = load_model(path, threads=threads)
        context_length = context_length or model.shape.context_length
        self.decode_inputs = StepInputs(*(np.zeros(max_rows, np.int32) for _ in range(3)))
        self.prefill_inputs = StepInputs(
            np.zeros(context_length, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)
        )
        self.logits = np.zeros((max_rows, model.shape.vocabulary_size), np.float32)
        self.decoder = Decoder(
            model,
            max_rows=max_rows,
            context_length=context_length,
            decode=self.decode_inputs,
            prefill=self.prefill_inputs,
            logits=self.logits,
        )
        self.lengths = [0] * max_rows

    def prefill(
        self, row: int, prompt: Sequence[int], chunks: Sequence[int] | None = None
    ) -> Array:
        """Replace the row's context by a prompt, cut into `chunks`; the last chunk's logits."""
        done = 0
        for count in chunks or [len(prompt)]:
            self.prefill_inputs.token_ids[:count] = prompt[done : done + count]
            self.prefill_inputs.start_positions[0] = done
            done += count
            self.prefill_inputs.lengths[0] = done
            self.decoder.prefill(row, count)
        self.lengths[row] = done
        return np.array(self.logits[0])

    def decode(self, tokens: Mapping[int, int], rows: int | None = None) -> Array:
        """Append a token to each row named; rows up to `rows` that are not named are inactive."""
        rows = rows or max(tokens) + 1
        for row in range(rows):
            active = row in tokens
            self.decode_inputs.token_ids[row] = tokens.get(row, 0)
            self.decode_inputs.start_positions[row] = self.lengths[row] if active else 0
            self.lengths[row] += active
            self.decode_inputs.lengths[row] = self.lengths[row] if active else 0
        self.decoder.decode(rows)
        return np.array(self.logits[:rows])

    def cache(self, row: int) -> Array:
        """The row's entries, [layers, 2, tokens, kv_heads, head_dim]."""
        return np.array(self.decoder.kv[:, :, row, :, : self.lengths[row]].swapaxes(2, 3))
