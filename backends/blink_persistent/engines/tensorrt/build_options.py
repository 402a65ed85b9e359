"""What may be asked of a build of a plan, and what holds where nothing is.

flavour: "full" (TensorRT) or "rtx" (TensorRT for RTX); the first that is installed. target: the
GPU to build for, as "sm_89"; that of this machine. attention: "plugin", or "native" for layers of
TensorRT's own; native for a flavour that takes no plugins. pools: "aliased" tells TensorRT that the
plugin writes KV memory in place, "bound" leaves that to the addresses that are bound. block_size:
KV entries of a block. plugin, block_count, capture, device, scheduler: as in `options.py`; they
are written to config.json as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink_persistent.engines.cuda.options import BLOCK_SIZES, DEFAULT_BLOCK_SIZE
from blink_persistent.engines.place import PLACE_OPTIONS, place_problems
from blink_persistent.engines.tensorrt.flavour import FLAVOURS, Flavour, installed_flavour
from blink_persistent.engines.tensorrt.options import ATTENTIONS, NATIVE, PLUGIN, SCHEMA
from blink_persistent.engines.tensorrt.plugin_attention import PYTHON
from blink_persistent.gpu.presence import architecture as architecture_of_gpu
from blink_server.backend import ModelVersion
from blink_server.errors import InvalidModel, Problem
from blink_server.schema_problems import problems_of
from blink_server.schemas import validator_of

POOLS = ALIASED, BOUND = ("aliased", "bound")
_KEPT = ("plugin", "block_count", "capture", *PLACE_OPTIONS)
_NAMES = ("flavour", "target", "attention", "pools", "block_size", *_KEPT)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """A build's options, checked; `kept` is what goes to config.json unread."""

    flavour: Flavour
    target: str
    attention: str
    aliased: bool
    block_size: int
    plugin: str
    kept: Mapping[str, Any]


def read_build_options(given: Mapping[str, Any], file: Path, *, device: int = 0) -> BuildOptions:
    """Raises InvalidModel naming fields of `file`, Unavailable where no TensorRT is installed."""
    if problems := list(_problems(given, file)):
        raise InvalidModel(problems)
    name = given.get("flavour")
    flavour = FLAVOURS[name] if name is not None else installed_flavour()
    options = BuildOptions(
        flavour=flavour,
        target=given.get("target") or architecture_of_gpu(device),
        attention=given.get("attention", PLUGIN if flavour.plugins else NATIVE),
        aliased=given.get("pools", ALIASED) == ALIASED,
        block_size=given.get("block_size", DEFAULT_BLOCK_SIZE),
        plugin=given.get("plugin", PYTHON),
        kept={option: value for option, value in given.items() if option in _KEPT},
    )
    if problems := list(_misfits(options, file, architecture_of_gpu(device))):
        raise InvalidModel(problems)
    return options


def _problems(given: Mapping[str, Any], file: Path) -> Iterator[Problem]:
    choices: dict[str, tuple[Any, ...]] = {
        "flavour": tuple(FLAVOURS),
        "attention": ATTENTIONS,
        "pools": POOLS,
        "block_size": BLOCK_SIZES,
    }
    for option, value in given.items():
        if option not in _NAMES:
            yield Problem(file, f"engine.{option}", value, f"use one of {', '.join(_NAMES)}")
        elif option in choices and value not in choices[option]:
            expected = f"must be one of {', '.join(map(str, choices[option]))}"
            yield Problem(file, f"engine.{option}", value, expected)
    kept = {option: value for option, value in given.items() if option in _KEPT}
    yield from problems_of(validator_of(SCHEMA | {"required": []}), kept, file, within="engine")
    yield from place_problems(ModelVersion("", 1, file.parent, {"engine": kept}))


def _misfits(options: BuildOptions, file: Path, here: str) -> Iterator[Problem]:
    flavour, target = options.flavour, options.target
    if not target:
        expected = "give one to blink-server build, as sm_89: this machine has no GPU"
        yield Problem(file, "engine.target", None, expected)
    elif not flavour.cross_builds and target != here:
        found = f"this machine's is {here}" if here else "this machine has none"
        expected = f"{flavour.title} builds on the GPU that is to serve, and {found}"
        yield Problem(file, "engine.target", target, expected, of_machine=True)
    if options.attention == PLUGIN and not flavour.plugins:
        expected = f"must be {NATIVE!r}: {flavour.title} takes no plugins"
        yield Problem(file, "engine.attention", PLUGIN, expected)
