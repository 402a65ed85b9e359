"""One route, as the OpenAPI document describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blink_server.http.fields import Schema

REFUSALS = {
    "400": "The request is wrong; `param` names the field.",
    "401": "The API key is missing or wrong.",
    "403": "Only holders of an admin key may do this.",
    "404": "There is no such model in service.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "429": "The key has too many requests in progress.",
    "500": "The engine failed.",
    "503": "No slot is free, the model cannot serve now, or its runner was lost; see Retry-After.",
    "504": "The answer was not finished in time.",
}
OF_TEXT = tuple(status for status in REFUSALS if status != "403")
"""How a request for text may be refused."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One route: what it takes and gives. `body` None: it takes none; `gives`: a schema's name.

    `streams`: it may answer with events; `always`: it does. `bodiless`: the body may be left out.
    `redirects`: it gives the address of another route only.
    """

    method: str
    path: str
    summary: str
    gives: str
    body: Schema | None = None
    streams: bool = False
    parameters: tuple[Mapping[str, Any], ...] = ()
    refusals: tuple[str, ...] = OF_TEXT
    refusal: str = "Error"
    open: bool = False
    always: bool = False
    bodiless: bool = False
    redirects: bool = False
