"""The sampler `my_plugin`: its choice is made in choose.h, for GPU and host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blink_persistent.samplers.source import SourceSampler
from blink_server.hookspecs import SamplerFactory, Schema, hookimpl

SOURCE = Path(__file__).with_name("choose.h")

OPTIONS = {
    "additionalProperties": False,
    "properties": {"least": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.05}},
}


@hookimpl
def blink_samplers() -> Mapping[str, SamplerFactory]:
    def make(options: Mapping[str, Any]) -> SourceSampler:
        return SourceSampler(SOURCE, {"least": float(options["least"])})

    return {"my_plugin": make}


@hookimpl
def blink_option_schemas() -> Mapping[str, Mapping[str, Schema]]:
    return {"sampler_options": {"my_plugin": OPTIONS}}
