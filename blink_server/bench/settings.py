"""What the user asks of a benchmark: its options, and what they mean."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink_server.api_keys import read_api_keys
from blink_server.bench.client import CHAT, COMPLETIONS
from blink_server.bench.exchange import Site
from blink_server.bench.lengths import parse_lengths
from blink_server.bench.measurement import Target
from blink_server.bench.summary import Objectives
from blink_server.bench.trace import read_trace
from blink_server.bench.workload import (
    DrawSizes,
    Workload,
    closed_loop,
    independent,
    open_loop,
    recorded,
    replayed,
)
from blink_server.errors import BlinkError

ROUTES = {"completions": COMPLETIONS, "chat": CHAT}


@dataclass(frozen=True, slots=True)
class Load:
    """One load of a sweep. `rate` is the offered load in requests a second, if it has one.

    `key` goes into the seed: a load has the same arrivals alone and in any sweep.
    """

    name: str
    rate: float | None
    key: int
    workload: Callable[[Sequence[int]], Workload]


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """The options of every benchmark, by the names of `bench_options`."""

    url: str
    model: str | None
    api_key_file: Path | None
    endpoint: str
    rate: tuple[float, ...]
    concurrency: tuple[int, ...]
    trace: Path | None
    speed: float
    arrivals: str
    duration_secs: float
    requests: int
    input_tokens: str
    output_tokens: str
    lengths_from: Path | None
    prompt_ids: int | None
    tokenizer: Path | None
    exact: str
    extra_body: str
    warm_up_secs: float
    cool_down_secs: float
    timeout_secs: float
    slo: tuple[str, ...]
    repeats: int
    seed: int
    operating_range: float | None
    generator_cores: str | None
    gpu: tuple[int, ...]
    output: Path | None
    plots: bool

    @property
    def site(self) -> Site:
        """Raises BlinkError for a key file that cannot be used."""
        return Site(
            self.url, "" if self.api_key_file is None else read_api_keys(self.api_key_file)[0]
        )

    @property
    def route(self) -> str:
        return ROUTES[self.endpoint]

    def check(self) -> None:
        """Raises BlinkError for options that do not go together."""
        self.site.check()
        kinds = [name for name in ("rate", "concurrency", "trace") if getattr(self, name)]
        if len(kinds) != 1:
            raise BlinkError("give one of --rate, --concurrency and --trace")
        if self.rate and self.warm_up_secs + self.cool_down_secs >= self.duration_secs:
            raise BlinkError("--warm-up-secs and --cool-down-secs leave nothing of --duration-secs")
        if self.prompt_ids is not None and self.endpoint == "chat":
            raise BlinkError("--prompt-ids: chats are text; use --endpoint completions")

    def loads(self) -> list[Load]:
        """Those to measure, in the order given. Raises BlinkError."""
        if self.trace is not None:
            rows = read_trace(self.trace)
            rate = replayed(rows, self.speed)
            load = len(rate.times) / (rate.seconds or 1.0)
            return [Load(f"{self.trace.name} x{self.speed:g}", load, 0, lambda _: rate)]
        draw = self._sizes()
        if self.concurrency:
            return [self._closed(clients, draw) for clients in self.concurrency]
        return [self._open(rate, draw) for rate in self.rate]

    def target(self, site: Site, model: str) -> Target:
        """What is asked of a model; `site` is that of the settings. Raises BlinkError."""
        fields: dict[str, Any] = {"model": model, "temperature": 0}
        if self.exact == "ignore-eos":
            fields["ignore_eos"] = True
        elif self.exact == "min-tokens":
            fields["min_tokens"] = 1  # each request gets its own
        return Target(
            site=site,
            route=self.route,
            fields={**fields, **self._extra_fields()},
            timeout_seconds=self.timeout_secs,
            warm_up=self.warm_up_secs,
            cool_down=self.cool_down_secs,
            objectives=parse_objectives(self.slo),
        )

    def _sizes(self) -> DrawSizes:
        if self.lengths_from is not None:
            return recorded(read_trace(self.lengths_from, timed=False))
        return independent(parse_lengths(self.input_tokens), parse_lengths(self.output_tokens))

    def _open(self, rate: float, draw: DrawSizes) -> Load:
        def workload(seed: Sequence[int]) -> Workload:
            return open_loop(self.arrivals, rate, self.duration_secs, draw, seed)

        return Load(f"{rate:g}/s", rate, round(rate * 1000), workload)

    def _closed(self, clients: int, draw: DrawSizes) -> Load:
        def workload(seed: Sequence[int]) -> Workload:
            return closed_loop(clients, self.requests, draw, seed)

        return Load(f"{clients} at a time", None, clients, workload)

    def _extra_fields(self) -> dict[str, Any]:
        try:
            extra = json.loads(self.extra_body)
        except ValueError as error:
            raise BlinkError(f"--extra-body is not JSON: {error}") from None
        if not isinstance(extra, dict):
            raise BlinkError("--extra-body is no JSON object")
        return extra


def parse_objectives(texts: Sequence[str]) -> Objectives:
    """Read `ttft:200`, `tpot:50`, `e2e:3000`, in milliseconds. Raises BlinkError."""
    limits: dict[str, float] = {}
    for text in texts:
        name, _, limit = text.partition(":")
        try:
            limits[name] = float(limit)
        except ValueError:
            name = ""
        if name not in ("ttft", "tpot", "e2e"):
            raise BlinkError(f"--slo is {text!r}; it must be ttft:MS, tpot:MS or e2e:MS")
    return Objectives(**limits)
