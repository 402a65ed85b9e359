"""Figures of a benchmark: raw values, medians, targets, the table shown and the file kept."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of the report: its raw values, and what its median is held against."""

    name: str
    unit: str
    values: tuple[float, ...]
    at_least: float | None = None
    at_most: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> bool:
        low = self.at_least is None or self.median >= self.at_least
        return low and (self.at_most is None or self.median <= self.at_most)

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return "" if self.at_most is None else f"<= {self.at_most:g}"


def report(measures: Sequence[Measure]) -> Table:
    """The table that is printed."""
    table = Table("measure", "median", "of", "target", "")
    for one in measures:
        values = " ".join(f"{value:.3g}" for value in one.values)
        verdict = "" if not one.target else "met" if one.met else "MISSED"
        table.add_row(one.name, f"{one.median:.3g} {one.unit}", values, one.target, verdict)
    return table


def keep(
    name: str,
    method: str | None,
    machine: Mapping[str, Any],
    measures: Sequence[Measure],
    **more: Any,
) -> Path:
    """Write everything to results/<date>-<name>.json; returns its path."""
    document = {
        "method": (method or "").strip(),
        "machine": machine,
        "measures": [{**asdict(one), "median": one.median, "met": one.met} for one in measures],
        **more,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{name}.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path
