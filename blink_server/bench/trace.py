"""Traces: recorded arrivals and lengths, from JSON lines or CSV."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink_server.errors import BlinkError

ARRIVAL, INPUT, OUTPUT = "arrival", "input_tokens", "output_tokens"


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A recorded request: seconds after the trace's first one, tokens of prompt and answer."""

    arrival: float
    input_tokens: int
    output_tokens: int


def read_trace(path: Path, *, timed: bool = True) -> list[TraceRow]:
    """A trace's rows in the order of their arrival, the first one at 0.

    A `.csv` file has a header; every other file has one JSON object a line. Both have the fields
    `arrival` (seconds), `input_tokens`, `output_tokens`; further ones are left alone.
    Without `timed` only lengths are of interest, and `arrival` may be missing. Raises BlinkError
    naming file, line and field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BlinkError(f"{path}: cannot be read: {error}") from None
    records = _csv_records(text) if path.suffix == ".csv" else _json_records(path, text)
    rows = [_row(path, line, record, timed) for line, record in records]
    if not rows:
        raise BlinkError(f"{path}: has no requests")
    rows.sort(key=lambda row: row.arrival)
    first = rows[0].arrival
    return [TraceRow(row.arrival - first, row.input_tokens, row.output_tokens) for row in rows]


def _csv_records(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(text.splitlines())
    for record in reader:
        yield reader.line_num, record


def _json_records(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line, content in enumerate(text.splitlines(), 1):
        if content.strip():
            try:
                record = json.loads(content)
            except ValueError as error:
                raise BlinkError(f"{path}:{line}: is not JSON: {error}") from None
            if not isinstance(record, dict):
                raise BlinkError(f"{path}:{line}: is not an object")
            yield line, record


def _row(path: Path, line: int, record: Mapping[str, Any], timed: bool) -> TraceRow:
    def number(field: str, least: float) -> float:
        try:
            value = float(record[field])
        except (KeyError, TypeError, ValueError):
            value = math.nan
        if not (math.isfinite(value) and value >= least):
            found = record.get(field)
            raise BlinkError(f"{path}:{line}: {field} is {found!r}; a number >= {least:g} is due")
        return value

    arrival = number(ARRIVAL, -1e15) if timed else 0.0
    return TraceRow(arrival, int(number(INPUT, 1)), int(number(OUTPUT, 1)))
