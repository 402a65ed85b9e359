"""Mirrors of the C++ structs that the host fills for device code.

The compiler checks them: `layout_assertions` gives static assertions on every offset, compiled
with the code that reads the structs, so a mirror that has gone out of step does not compile.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_uint32, c_uint64


class PhaseBuffers(ctypes.Structure):
    """Addresses of one phase's inputs and outputs (provisioned.h)."""

    _fields_ = [
        ("token_ids", c_uint64),
        ("start_positions", c_uint64),
        ("lengths", c_uint64),
        ("rows", c_uint64),
        ("cu_seqlens", c_uint64),
        ("block_tables", c_uint64),
        ("sampling", c_uint64),
        ("output_tokens", c_uint64),
        ("output_logprobs", c_uint64),
        ("output_top_ids", c_uint64),
        ("output_top_logprobs", c_uint64),
        ("completion", c_uint64),
        ("error", c_uint64),
    ]


class SamplingRow(ctypes.Structure):
    """What the scheduler tells a sampler of a row (provisioned.h); the sampler's own come last."""

    _fields_ = [
        ("seed", c_uint64),
        ("prompt", c_uint64),
        ("output", c_uint64),
        ("bias", c_uint64),
        ("stop", c_uint64),
        ("grammar", c_uint64),
        ("prompt_length", c_uint32),
        ("output_length", c_uint32),
        ("bias_count", c_uint32),
        ("stop_count", c_uint32),
        ("position", c_uint32),
        ("logprobs", c_uint32),
        ("top_k", c_int32),
        ("temperature", c_float),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repetition_penalty", c_float),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("flags", c_uint32),
        ("grammar_words", c_uint32),
        ("grammar_state", c_uint32),
        ("grammar_length", c_uint32),
        ("kept", c_uint32),
    ]


class GraphKey(ctypes.Structure):
    """A graph's phase and shape (provisioned.h)."""

    _fields_ = [
        ("phase", c_uint32),
        ("sequences", c_uint32),
        ("tokens", c_uint32),
        ("rows", c_uint32),
    ]


class EngineTables(ctypes.Structure):
    """What does not change about an engine while it is in service (provisioned.h)."""

    _fields_ = [
        ("buffers", PhaseBuffers * 2),
        ("graphs", c_uint64),
        ("decode_lookup", c_uint64),
        ("prefill_lookup", c_uint64),
        ("mixed_lookup", c_uint64),
        ("eos_token_ids", c_uint64),
        ("graph_count", c_uint32),
        ("eos_count", c_uint32),
        ("max_rows", c_uint32),
        ("max_sequences", c_uint32),
        ("max_prefill_tokens", c_uint32),
        ("token_granularity", c_uint32),
        ("prefill_chunk", c_uint32),
        ("mixed_sequences", c_uint32),
        ("max_mixed_tokens", c_uint32),
        ("context_length", c_uint32),
        ("vocabulary_size", c_uint32),
        ("block_size", c_uint32),
        ("block_count", c_uint32),
        ("max_blocks", c_uint32),
        ("rows_movable", c_uint32),
        ("deterministic", c_uint32),
    ]


class ControlWords(ctypes.Structure):
    """The host's words to the scheduler (scheduler_state.h)."""

    _fields_ = [("command", c_uint32), ("close", c_uint32)]


class Profile(ctypes.Structure):
    """Where moments of steps are kept (port_gpu.cuh)."""

    _fields_ = [("events", c_uint64), ("capacity", c_uint32), ("count", c_uint32)]


class GpuScheduler(ctypes.Structure):
    """Parameters of the scheduler's kernel (scheduler_gpu.cu)."""

    _fields_ = [
        ("ring", c_uint64),
        ("engine", EngineTables),
        ("state", c_uint64),
        ("control", c_uint64),
        ("graphs", c_uint64),
        ("profile", c_uint64),
    ]


class StateAddresses(ctypes.Structure):
    """What the host may read of the state (scheduler_gpu.cu)."""

    _fields_ = [("bytes", c_uint64), ("trace", c_uint64), ("trace_count", c_uint64)]


class ScriptedRule(ctypes.Structure):
    """Which token follows a sequence (scripted_rule.h)."""

    _fields_ = [("vocabulary_size", c_uint32), ("eos_token_id", c_int32), ("eos_every", c_uint32)]


class ScriptedGpu(ctypes.Structure):
    """Parameters and state of the scripted engine's kernels (scripted_gpu.cu)."""

    _fields_ = [
        ("engine", EngineTables),
        ("rule", ScriptedRule),
        ("poison_token", c_int32),
        ("kv", c_uint64),
        ("step_ns", c_uint64),
        ("gate", c_uint64),
        ("times", c_uint64),
        ("times_capacity", c_uint32),
        ("steps", c_uint32),
        ("begun_ns", c_uint64),
    ]


SCHEDULER_STRUCTS = (
    PhaseBuffers,
    SamplingRow,
    GraphKey,
    EngineTables,
    ControlWords,
    Profile,
    GpuScheduler,
    StateAddresses,
)
SCRIPTED_STRUCTS = (PhaseBuffers, EngineTables, ScriptedRule, ScriptedGpu)


def layout_assertions(structs: Sequence[type[ctypes.Structure]]) -> str:
    """C++ that compiles only where every field of these structs lies where the mirror has it."""
    lines = []
    for struct in structs:
        name = struct.__name__
        lines.append(f'static_assert(sizeof(blink::{name}) == {ctypes.sizeof(struct)}, "{name}");')
        for field, *_ in struct._fields_:
            at = getattr(struct, field).offset
            lines.append(
                f'static_assert(BLINK_OFFSETOF(blink::{name}, {field}) == {at}, "{name}.{field}");'
            )
    return "\n" + "\n".join(lines) + "\n"
