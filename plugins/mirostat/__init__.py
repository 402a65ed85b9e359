"""The sampler `mirostat`: keeps the surprise of an answer's tokens near a target.

    "sampler": "mirostat", "sampler_options": {"tau": 5.0, "eta": 0.1}

Requests choose by their temperature; top_p, top_k and min_p are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blink_server.hookspecs import SamplerFactory, Schema, hookimpl

SOURCE = Path(__file__).with_name("mirostat.h")

OPTIONS = {
    "additionalProperties": False,
    "properties": {
        "tau": {
            "description": "Wanted surprise of a token, in bits.",
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 5.0,
        },
        "eta": {
            "description": "How fast it is approached.",
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "default": 0.1,
        },
    },
}


@hookimpl
def blink_samplers() -> Mapping[str, SamplerFactory]:
    """`mirostat`."""

    def make(options: Mapping[str, float]) -> Any:
        from blink_persistent.samplers.source import SourceSampler

        return SourceSampler(SOURCE, {name: float(value) for name, value in options.items()})

    return {"mirostat": make}


@hookimpl
def blink_option_schemas() -> Mapping[str, Mapping[str, Schema]]:
    """tau and eta."""
    return {"sampler_options": {"mirostat": OPTIONS}}
