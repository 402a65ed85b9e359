"""Reads the text of /metrics strictly, as promtool's lint does, and says what is wrong with it.

The library's parsers forgive what this does not: repeated or missing HELP and TYPE, a family in two
places, histograms whose buckets do not add up, units and suffixes against the conventions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
_SAMPLE = re.compile(r"(?P<name>[^\s{]+)(?:\{(?P<labels>.*?)\})? (?P<value>\S+)(?P<rest> # .*)?")
_EXEMPLAR = re.compile(r" # \{.*\} \S+( \S+)?")
_SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count", ""),
    "info": ("_info",),
}
_TYPES = {"counter", "gauge", "histogram", "summary", "untyped", "unknown", "info"}
_UNITS = re.compile(r"_(us|ms|ns|secs|milliseconds|microseconds|nanoseconds|minutes|hours)(_|$)")
_OTHERS = ("nv_", "vllm:iteration_tokens_total")  # named by others than us, who name differently

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    """One metric: its name as TYPE has it, and every sample by name and labels."""

    name: str
    help: str | None = None
    type: str | None = None
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)


class MetricLines:
    """`families` by name, `problems` as sentences; no problem, no doubt about the text."""

    def __init__(self, text: str, *, openmetrics: bool) -> None:
        self.families: dict[str, Family] = {}
        self.problems: list[str] = []
        self._openmetrics = openmetrics
        self._current: Family | None = None
        lines = text.split("\n")
        if lines.pop() != "":
            self.problems.append("the last line has no end")
        if openmetrics and (not lines or lines.pop() != "# EOF"):
            self.problems.append("no # EOF at the end")
        for line in lines:
            self.problems += [f"{line!r}: {problem}" for problem in self._read(line)]
        for family in self.families.values():
            self.problems += [f"{family.name}: {problem}" for problem in _faults(family)]

    @property
    def names(self) -> set[str]:
        """Of all samples."""
        return {name for family in self.families.values() for name, _ in family.samples}

    def _read(self, line: str) -> Iterator[str]:
        if line.startswith("# "):
            yield from self._read_comment(line)
            return
        found = _SAMPLE.fullmatch(line)
        if found is None:
            yield "is no sample"
            return
        if found["rest"] and not (self._openmetrics and _EXEMPLAR.fullmatch(found["rest"])):
            yield "has an exemplar that may not be there"
        labels = _labels(found["labels"] or "")
        family, name = self._current, found["name"]
        if labels is None:
            yield "has labels that cannot be read"
        elif family is None or not _belongs(name, family, openmetrics=self._openmetrics):
            yield "is not below its TYPE"
        elif (name, labels) in family.samples:
            yield "is a series that was there before"
        else:
            family.samples[name, labels] = float(found["value"])

    def _read_comment(self, line: str) -> Iterator[str]:
        _, kind, name, text = line.split(" ", 3)
        if kind not in ("HELP", "TYPE"):
            yield "is neither HELP nor TYPE"
            return
        if not _NAME.fullmatch(name):
            yield "names no metric"
        if self._current is None or self._current.name != name:
            if name in self.families:
                yield "comes again"
            self._current = self.families.setdefault(name, Family(name))
        key = kind.lower()
        if getattr(self._current, key) is not None or self._current.samples:
            yield "comes again, or after samples"
        setattr(self._current, key, text)


def _labels(text: str) -> Labels | None:
    labels, end = [], 0
    while end < len(text):
        found = _LABEL.match(text, end)
        if found is None:
            return None
        labels.append((found[1], found[2]))
        end = found.end()
    names = [name for name, _ in labels]
    return None if len(set(names)) < len(names) else tuple(sorted(labels))


def _belongs(sample: str, family: Family, *, openmetrics: bool) -> bool:
    suffixes = _SUFFIXES.get(family.type or "", ("",))
    if family.type == "counter" and not openmetrics:
        suffixes = ("",)
    return any(sample == family.name + suffix for suffix in suffixes)


def _faults(family: Family) -> Iterator[str]:
    if not family.help or family.type not in _TYPES:
        yield "lacks HELP or TYPE"
    for (name, labels), value in family.samples.items():
        if value < 0 or value != value:
            yield f"{name} {labels} is {value}"
        if family.type != "histogram" and any(label == "le" for label, _ in labels):
            yield "has a label that only histograms have"
        if not family.name.startswith(_OTHERS):
            if _UNITS.search(name):
                yield "is not in a base unit"
            if (family.type == "counter") != name.endswith("_total"):
                yield "ends in _total although it is no counter, or is one and does not"
    if family.type == "histogram":
        yield from _histogram_faults(family)


def _histogram_faults(family: Family) -> Iterator[str]:
    series: dict[Labels, dict[float, float]] = {}
    for (name, labels), value in family.samples.items():
        if name == f"{family.name}_bucket":
            bound = float(dict(labels)["le"])
            others = tuple(label for label in labels if label[0] != "le")
            series.setdefault(others, {})[bound] = value
    counted = {labels for name, labels in family.samples if name == f"{family.name}_count"}
    if counted != series.keys():
        yield "has a series without buckets or without a count"
        return
    for labels, buckets in series.items():
        counts = [buckets[bound] for bound in sorted(buckets)]
        if any(one > next_ for one, next_ in pairwise(counts)):
            yield f"{labels}: buckets fall"
        if buckets.get(float("inf")) != family.samples[f"{family.name}_count", labels]:
            yield f"{labels}: the last bucket is not the count"
        if (f"{family.name}_sum", labels) not in family.samples:
            yield f"{labels}: there is no sum"
