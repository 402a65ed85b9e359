"""One step of a key, as it is run and captured: the decoder's, then a sampler for each phase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blink_persistent.engines import DeviceSampling
from blink_persistent.engines.cuda.model import Decoder
from blink_persistent.engines.cuda.step_tensors import StepInputs
from blink_persistent.graph_grid import DECODE, MIXED, PREFILL, GraphKey


def enqueue_step(
    decoder: Decoder,
    inputs: Mapping[int, StepInputs],
    key: GraphKey,
    sampler: DeviceSampling,
    stream: Any,
) -> None:
    """On the current stream, which is `stream`. `inputs` are those of decode and of prefill."""
    if key.phase == MIXED:
        prefill, decode = inputs[PREFILL], inputs[DECODE]
        decoder.mixed(prefill, decode, key.sequences, key.tokens, key.rows)
        sampler.record(PREFILL, key.sequences, stream)
        sampler.record(DECODE, key.rows, stream, first=key.sequences)
        return
    if key.phase == DECODE:
        decoder.decode(inputs[DECODE], key.sequences)
    else:
        decoder.prefill(inputs[PREFILL], key.sequences, key.tokens)
    sampler.record(key.phase, key.sequences, stream)
