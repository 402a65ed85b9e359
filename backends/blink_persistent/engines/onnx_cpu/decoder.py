"""One ONNX Runtime session, the KV slabs of its rows, and steps that allocate nothing.

Everything a step reads or writes lies at a fixed address and is bound once: the caller's int32
inputs, the logits, and the slabs, which serve as past and present at once. A step is then one
call into ONNX Runtime.
"""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blink_persistent.engines.onnx_cpu.metadata import ModelShape
from blink_persistent.engines.onnx_cpu.session import LoadedModel
from blink_server.errors import EngineFailure, InvalidModel, Problem

# Query tiles of attention are multiples of this (2 * head_dim, or less on small caches).
_QUERY_TILE = 32

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Where the caller writes one phase's inputs: C-contiguous int32, alive as long as the decoder.

    token_ids [capacity]: decode, one a row; prefill, the tokens of one chunk.
    start_positions [rows]: KV entries before the step. lengths [rows]: after it, 0 = inactive.
    Prefill reads start_positions[0], and knows the length from the chunk.
    """

    token_ids: Int32Array
    start_positions: Int32Array
    lengths: Int32Array


class Decoder:
    """Steps of one model. Not thread-safe: one step at a time. The GIL is free during a step.

    `kv` is float32 [layers, 2 (key, value), max_rows, kv_heads, context_length, head_dim]; its
    memory becomes resident only as entries are written.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        max_rows: int,
        context_length: int,
        decode: StepInputs,
        prefill: StepInputs,
        logits: Float32Array,
    ) -> None:
        """Results of a step go to `logits`, float32 [max_rows, vocabulary].

        Raises `InvalidModel` if the model was not built for `context_length`; `ValueError` if a
        buffer does not fit.
        """
        self._session, self.shape = model.session, model.shape
        if not 2 <= context_length <= self.shape.context_length:
            expected = (
                f"must be from 2 to {self.shape.context_length}, what the model was built for"
            )
            raise InvalidModel([Problem(model.path, "context_length", context_length, expected)])
        self.max_rows = max_rows
        self.context_length = context_length
        _require(logits, np.float32, (max_rows, self.shape.vocabulary_size), "logits")
        for inputs, name in ((decode, "decode"), (prefill, "prefill")):
            rows = max_rows if inputs is decode else 1
            _require(inputs.token_ids, np.int32, (rows,), f"{name}.token_ids")
            _require(inputs.start_positions, np.int32, (rows,), f"{name}.start_positions")
            _require(inputs.lengths, np.int32, (rows,), f"{name}.lengths")
        self._decode_inputs, self._prefill_inputs, self._logits = decode, prefill, logits
        self._own_start, self._own_length = np.zeros(1, np.int32), np.zeros(1, np.int32)
        self._pair = np.zeros(2, np.int32)
        self._prefilled = [(0, 0)] * max_rows  # length and last token of each row's last chunk
        self._memory, self.kv = _map_slabs(self.shape, max_rows, context_length)
        self._decode_bindings = [
            self._bind(decode, first_row=0, rows=rows) for rows in range(1, max_rows + 1)
        ]
        chunk = StepInputs(prefill.token_ids, self._own_start, self._own_length)
        self._prefill_bindings = [
            self._bind(chunk, first_row=row, rows=1) for row in range(max_rows)
        ]

    def decode(self, rows: int) -> None:
        """One token for each of the rows 0..rows-1: logits[r] for row r, one KV entry appended.

        Reads the first `rows` elements of the decode inputs. A row of length 0 is inactive: its
        slab is left as it is and its logits mean nothing. A row's result does not depend on the
        others. Raises `EngineFailure`; `ValueError` if `rows` is not from 1 to `max_rows`.
        """
        if not 1 <= rows <= self.max_rows:
            raise ValueError(f"rows is {rows}; it must be from 1 to {self.max_rows}")
        self._run(self._decode_bindings[rows - 1])

    def prefill(self, row: int, count: int) -> None:
        """One chunk of `count` prompt tokens on the slab of `row`; its last logits to logits[0].

        The chunk is appended at prefill.start_positions[0]. However a prompt is cut into chunks,
        entries and logits are the same, bit by bit. Raises `EngineFailure`, also when the chunk
        passes the context length; `ValueError` if there is no such row or the token buffer is
        shorter than `count`.
        """
        inputs = self._prefill_inputs
        if not (0 <= row < self.max_rows and 1 <= count <= len(inputs.token_ids)):
            limits = f"row must be below {self.max_rows}, count from 1 to {len(inputs.token_ids)}"
            raise ValueError(f"row is {row}, count {count}; {limits}")
        tokens, start = inputs.token_ids[:count], int(inputs.start_positions[0])
        for piece, position in self._without_lone_queries(row, tokens, start):
            self._own_start[0] = position
            self._own_length[0] = position + len(piece)
            binding = self._prefill_bindings[row]
            shape = [1, len(piece)]
            binding.bind_input("token_ids", "cpu", 0, np.int32, shape, piece.ctypes.data)
            self._run(binding)
        self._prefilled[row] = start + count, int(tokens[-1])

    def _without_lone_queries(
        self, row: int, tokens: Int32Array, start: int
    ) -> list[tuple[Int32Array, int]]:
        """The launches (tokens, start) of one chunk, none of which has a tile of one query.

        Attention takes queries by tiles, and one alone is computed in another order than several
        are: the difference would show how the prompt was cut.
        """
        length, previous_token = self._prefilled[row]
        if len(tokens) == 1 and start == length > 0:
            # Computing the token before it again gives the same entry, and company.
            self._pair[:] = previous_token, tokens[0]
            return [(self._pair, start - 1)]
        if len(tokens) > 1 and len(tokens) % _QUERY_TILE == 1:
            return [(tokens[:-2], start), (tokens[-2:], start + len(tokens) - 2)]
        return [(tokens, start)]

    def close(self) -> None:
        """Give the session and the slabs back; no step may follow, and no view of `kv` be used."""
        self._decode_bindings.clear()
        self._prefill_bindings.clear()
        del self._session, self.kv, self._memory

    def _run(self, binding: Any) -> None:
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # ONNX Runtime's exceptions have no common base of their own
            raise EngineFailure(f"the model's step failed: {error}") from error

    def _bind(self, inputs: StepInputs, *, first_row: int, rows: int) -> Any:
        """All ends of a step on `rows` slabs from `first_row` on; logits from row 0 on."""
        binding = self._session.io_binding()
        for name, array, shape in (
            ("token_ids", inputs.token_ids, [rows, 1]),
            ("start_positions", inputs.start_positions, [rows]),
            ("lengths", inputs.lengths, [rows]),
        ):
            binding.bind_input(name, "cpu", 0, np.int32, shape, array.ctypes.data)
        shape = [rows, self.shape.vocabulary_size]
        binding.bind_output("logits", "cpu", 0, np.float32, shape, self._logits.ctypes.data)
        shape = [rows, *self.kv.shape[3:]]
        for layer, parts in enumerate(self.kv):
            for part, slab in zip(("key", "value"), parts, strict=True):
                address = slab[first_row].ctypes.data
                binding.bind_input(f"past.{layer}.{part}", "cpu", 0, np.float32, shape, address)
                binding.bind_output(f"present.{layer}.{part}", "cpu", 0, np.float32, shape, address)
        return binding


def _map_slabs(shape: ModelShape, rows: int, context_length: int) -> tuple[mmap.mmap, Float32Array]:
    """Zeroed KV memory in small pages: with huge ones a short context would occupy a long one's."""
    memory = mmap.mmap(
        -1, rows * context_length * shape.entry_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    with contextlib.suppress(OSError):  # a kernel without huge pages does not know the word
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    slabs = np.frombuffer(memory, np.float32).reshape(
        shape.layers, 2, rows, shape.kv_heads, context_length, shape.head_dim
    )
    return memory, slabs


def _require(
    array: npt.NDArray[Any], dtype: npt.DTypeLike, at_least: tuple[int, ...], name: str
) -> None:
    fits = array.ndim == len(at_least) and array.shape[1:] == at_least[1:]
    if not (fits and array.shape[0] >= at_least[0] and array.dtype == dtype):
        raise ValueError(
            f"{name} must be {np.dtype(dtype)} {at_least} or longer, is {array.dtype} {array.shape}"
        )
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous")
