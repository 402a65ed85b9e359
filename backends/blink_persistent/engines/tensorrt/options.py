"""The engine's options in config.json's "engine", and what the version is by them.

file: the plan, by default model.plan. plan: what `build` said of it (`plan_description.py`).
plugin: who offers the attention's plugin to TensorRT, "python" or the "library" that is built with
this package where CMake finds TensorRT. block_count, capture: as for the engine `cuda`. device,
scheduler: see `place.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from blink_persistent.engines.place import place_problems
from blink_persistent.engines.tensorrt.flavour import FLAVOURS, Flavour
from blink_persistent.engines.tensorrt.plan_description import (
    LAYOUT,
    PlanDescription,
    StepRange,
    indistinct,
)
from blink_persistent.engines.tensorrt.plugin_attention import (
    LIBRARY,
    OFFERERS,
    PYTHON,
    library_problem,
)
from blink_persistent.graph_grid import DECODE, MIXED, PHASES, GraphKey, grid_of
from blink_server.backend import ModelVersion
from blink_server.errors import InvalidModel, Problem
from blink_server.importers.checkpoint import Architecture
from blink_server.schema_problems import problems_of
from blink_server.schemas import validator_of

PLAN_FILE = "model.plan"
ATTENTIONS = NATIVE, PLUGIN = ("native", "plugin")
DTYPE = "bfloat16"

_COUNT = {"type": "integer", "minimum": 1}
_STEPS = {
    "type": "object",
    "required": [each.name for each in fields(StepRange)],
    "properties": {each.name: _COUNT for each in fields(StepRange)},
}
_PLAN = {
    "type": "object",
    "additionalProperties": False,
    "required": [each.name for each in fields(PlanDescription)],
    "properties": {
        "flavour": {"enum": list(FLAVOURS)},
        "version": {"type": "string"},
        "target": {"type": "string", "pattern": "^sm_[0-9]{2,3}$"},
        "attention": {"enum": list(ATTENTIONS)},
        "aliased": {"type": "boolean"},
        "dtype": {"const": DTYPE},
        "layout": _COUNT,
        "block_size": _COUNT,
        "max_blocks": _COUNT,
        "blocks": {"type": "integer", "minimum": 2},
        "decode": _STEPS,
        "prefill": _STEPS,
        "grid": {"type": "string"},
        "file_bytes": _COUNT,
        "architecture": {
            "type": "object",
            "additionalProperties": False,
            "required": [each.name for each in fields(Architecture)],
            "properties": {each.name: {} for each in fields(Architecture)},
        },
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["plan"],
    "properties": {
        "name": {},
        "file": {"type": "string", "minLength": 1},
        "device": {},
        "scheduler": {},
        "plan": _PLAN,
        "plugin": {"enum": list(OFFERERS)},
        "block_count": {"type": "integer", "minimum": 2},
        "capture": {"enum": ["all", "background"]},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRtOptions:
    """A version's options, checked."""

    plan: PlanDescription
    file: str
    plugin: str
    block_count: int | None
    in_background: bool  # most graphs are captured

    @property
    def flavour(self) -> Flavour:
        return FLAVOURS[self.plan.flavour]


def read_options(version: ModelVersion) -> TensorRtOptions:
    """Raises InvalidModel with everything that is wrong of options, plan file and graph grid."""
    given: dict[str, Any] = version.config["engine"]
    file = version.directory / "config.json"
    problems = problems_of(validator_of(SCHEMA), given, file, within="engine")
    problems += place_problems(version)
    if problems:
        raise InvalidModel(problems)
    options = TensorRtOptions(
        plan=PlanDescription.from_json(given["plan"]),
        file=given.get("file", PLAN_FILE),
        plugin=given.get("plugin", PYTHON),
        block_count=given.get("block_count"),
        in_background=given.get("capture") == "background",
    )
    if problems := list(_misfits(version, options)):
        raise InvalidModel(problems)
    return options


def _misfits(version: ModelVersion, options: TensorRtOptions) -> Iterator[Problem]:
    """What of the version's other files and limits the plan does not fit."""
    config, plan = version.directory / "config.json", options.plan
    path = version.directory / options.file
    size = path.stat().st_size if path.is_file() else None
    if size is None:
        yield Problem(path, "", None, "is missing: build the version again")
    elif size != plan.file_bytes:
        expected = f"must have the {plan.file_bytes} bytes that were built: copy it again, whole"
        yield Problem(path, "bytes", size, expected)
    if plan.layout != LAYOUT:
        expected = f"must be {LAYOUT}, what this server binds: build the version again"
        yield Problem(config, "engine.plan.layout", plan.layout, expected)
    if options.plugin == LIBRARY and plan.attention == PLUGIN and (lacks := library_problem()):
        yield Problem(config, "engine.plugin", LIBRARY, lacks, of_machine=True)
    context = version.config["limits"]["context_length"]
    if -(-context // plan.block_size) != plan.max_blocks:
        most = plan.max_blocks * plan.block_size
        expected = (
            f"must be from {most - plan.block_size + 1} to {most}, for which the plan was built: "
            "build it for another context with --context-length"
        )
        yield Problem(config, "limits.context_length", context, expected)
    if (options.block_count or 0) > plan.blocks:
        expected = f"must be at most {plan.blocks}, the most that the plan takes"
        yield Problem(config, "engine.block_count", options.block_count, expected)
    yield from grid_problems(version, plan)


def grid_problems(version: ModelVersion, plan: PlanDescription) -> Iterator[Problem]:
    """Keys of graph_grid.json that the plan cannot run."""
    file = version.directory / "graph_grid.json"
    grid = grid_of(version)
    for key in plan.uncovered(grid):
        expected = _covered(plan, key.phase)
        yield Problem(file, PHASES[key.phase], _told(key), expected)
    for key in indistinct(grid):
        expected = "must have more tokens than sequences, or the plan takes it for a decode step"
        yield Problem(file, PHASES[key.phase], _told(key), expected)


def _covered(plan: PlanDescription, phase: int) -> str:
    if phase == MIXED:
        return "plans have no mixed steps: take the key out, or have limits.prefill 'alternating'"
    held = plan.decode if phase == DECODE else plan.prefill
    return (
        f"the plan's profiles hold up to {held.sequences} sequences and {held.tokens} tokens: "
        "take the key out, or build the version for it"
    )


def _told(key: GraphKey) -> str:
    return f"{key.sequences} sequences, {key.tokens} tokens"
