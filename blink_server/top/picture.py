"""One frame of `top`: models, and for each its ring, scheduler and graphs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from blink_server.backend import SLOT_STATES
from blink_server.tables import printable
from blink_server.top.feed import State
from blink_server.top.watch import Watch

_MODEL_STYLES = {"READY": "green", "UNAVAILABLE": "red", "LOADING": "yellow", "DRAINING": "yellow"}
_SLOTS = {  # letter and style; the later, the sooner it stands for all of its cell
    "EMPTY": (".", "dim"),
    "DECODE_COMPLETED": ("e", "magenta"),
    "DECODE_PROCESSING": ("d", "green"),
    "PREFILL_PROCESSING": ("p", "blue"),
    "PREFILL_PENDING": ("w", "yellow"),
    "DECODE_PAUSED": ("z", "red"),
}
_WORDS = {"e": "ended", "d": "decode", "p": "prefill", "w": "waiting", "z": "paused"}
_RANK = {state: rank for rank, state in enumerate(_SLOTS)}
_MAP_LINES = 4
_GRAPHS = 5
_LATENCIES = {"ttft": "first token", "tpot": "next token", "e2e": "whole request"}
_RATES = {
    "tokens": "generated_tokens",
    "prompt tokens": "prompt_tokens",
    "steps": "steps",
    "requests": "completions",
}
_AGENT_RATES = {
    "agent turns": "agent_turns",
    "reads": "agent_reads",
    "bytes read": "agent_read_bytes",
    "writes": "agent_writes",
    "bytes written": "agent_written_bytes",
}
_TOTALS = ("preemptions", "parks", "tail_launches", "launch_retries")


def picture(watch: Watch, width: int, models: Sequence[str] = ()) -> RenderableType:
    """The frame; `models`: the names ("tiny" or "tiny:1") to show in detail, none for all.

    The busiest come first, since a terminal may be too low for all.
    """
    with watch.lock:
        state, now = watch.state, watch.clock()
        parts: list[RenderableType] = [_title(watch), _models(state)]
        busy = sorted(
            (name for name in state.get("schedulers", {}) if _wanted(name, models)),
            key=lambda name: (-len(_cells(state, name)), name),
        )
        for name in busy:
            parts += [
                Rule(Text(printable(name)), align="left"),
                _gauges(state, name),
                *_ring(state, name, width),
                _numbers(watch, name, now),
                *_agent(watch, name, now),
                _graphs(watch, name, now, width),
            ]
        if any(each["quantiles"][0] is not None for each in state.get("latencies", {}).values()):
            parts += [Rule("latency, all models", align="left"), _latencies(state)]
        return Group(*parts)


def _title(watch: Watch) -> RenderableType:
    title = Text(f"Blink server {watch.url}  ", style="bold")
    if watch.trouble:
        as_it_was = "; this is how it was" if watch.state else ""
        return title.append(watch.trouble + as_it_was, style="red")
    if not watch.state:
        return title.append("connecting", style="yellow")
    told = time.strftime("%T", time.localtime(watch.state["time"]))
    return title.append(f"{watch.state['server'].lower()}  {told}", style="default")


def _wanted(name: str, models: Sequence[str]) -> bool:
    return not models or name in models or name.rpartition(":")[0] in models


def _models(state: State) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for no_wrap in (False, True, False, False):
        table.add_column(no_wrap=no_wrap, overflow="fold")
    for name, model in sorted(state.get("models", {}).items()):
        table.add_row(
            Text(printable(name)),
            Text(model["state"], style=_MODEL_STYLES.get(model["state"], "default")),
            Text(printable(" ".join(model["aliases"])), style="dim"),
            Text(printable(model["reason"]), style="red"),
        )
    return table if table.row_count else Text("no models", style="dim")


def _cells(state: State, name: str) -> dict[str, list[Any]]:
    cells: dict[str, list[Any]] = state.get("rings", {}).get(name, {}).get("cells", {})
    return cells


def _gauges(state: State, name: str) -> RenderableType:
    stats = state["schedulers"][name]
    blocks = stats.get("kv_blocks", 0)
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(width=7, no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(min_width=16, no_wrap=True)
    shown = [
        ("rows", stats["rows_used"], stats["rows"], f"{stats['rows_used']}/{stats['rows']}"),
        ("KV", stats["kv_usage"], 1.0, f"{stats['kv_usage']:.0%} of {blocks} blocks"),
    ]
    if (ring := state.get("rings", {}).get(name)) is not None:
        used = len(ring["cells"])
        shown.append(("ring", used, ring["slots"], f"{used}/{ring['slots']} slots"))
    for label, value, most, text in shown:
        table.add_row(label, ProgressBar(total=most or 1, completed=value), text)
    return table


def _ring(state: State, name: str, width: int) -> Iterable[RenderableType]:
    """The ring as lines of letters, each for as many slots in a row as it takes; and its key."""
    ring = state.get("rings", {}).get(name)
    if ring is None:
        return
    columns = max(min(width, 64), 1)
    slots_a_letter = -(-ring["slots"] // (columns * _MAP_LINES))
    shown = ["EMPTY"] * -(-ring["slots"] // slots_a_letter)
    counts: Counter[str] = Counter()
    for slot, cell in ring["cells"].items():
        slot_state, place = SLOT_STATES[cell[0]], int(slot) // slots_a_letter
        counts[slot_state] += 1
        shown[place] = max(shown[place], slot_state, key=_RANK.__getitem__)
    for start in range(0, len(shown), columns):
        yield Text.assemble(*(_SLOTS[each] for each in shown[start : start + columns]))
    key = [
        Text.assemble((letter, style), (f" {word} {counts[each]}", "" if counts[each] else "dim"))
        for each, (letter, style) in _SLOTS.items()
        if (word := _WORDS.get(letter))
    ]
    if ring["cells"]:
        oldest = state["time"] - min(cell[3] for cell in ring["cells"].values())
        key.append(Text(f"oldest {max(oldest, 0):.1f} s"))
    if slots_a_letter > 1:
        key.append(Text(f"a letter: {slots_a_letter} slots", style="dim"))
    yield Columns(key, padding=(0, 2))


def _numbers(watch: Watch, name: str, now: float) -> RenderableType:
    stats, rates = watch.state["schedulers"][name], watch.rates
    words = [
        f"{label} {_rate(rates.per_second(now, 'schedulers', name, field))}"
        for label, field in _RATES.items()
    ]
    gaps = rates.growth(now, "schedulers", name, "gaps")
    seconds = rates.growth(now, "schedulers", name, "gap_seconds")
    if gaps and seconds and gaps[0]:
        words.append(f"gap {_duration(seconds[0] / gaps[0])}")
    words.append(f"waiting {stats['waiting']}")
    words += [f"{field.replace('_', ' ')} {stats[field]}" for field in _TOTALS]
    return Columns(words, padding=(0, 2))


def _agent(watch: Watch, name: str, now: float) -> Iterable[RenderableType]:
    """What carries requests to the ring and answers back, where the ring is elsewhere."""
    stats = watch.state["schedulers"][name]
    if not stats.get("agent_turns"):
        return
    words = [
        f"{label} {_rate(watch.rates.per_second(now, 'schedulers', name, field))}"
        for label, field in _AGENT_RATES.items()
    ]
    words.append(f"reconnections {stats['agent_reconnections']}")
    yield Columns(words, padding=(0, 2))


def _graphs(watch: Watch, name: str, now: float, width: int) -> RenderableType:
    """The graphs that run most often now; those that have, where nothing runs."""
    totals: dict[str, int] = watch.state.get("graphs", {}).get(name, {})
    rates = {key: watch.rates.per_second(now, "graphs", name, key) or 0.0 for key in totals}
    hottest = sorted(totals, key=lambda key: (-rates[key], -totals[key]))[:_GRAPHS]
    hottest = [key for key in hottest if totals[key]]
    most = max((rates[key] for key in hottest), default=0.0)
    table = Table.grid(padding=(0, 1))
    for key in hottest:
        phase, sequences, tokens, *rows = key.split(":")
        shape = sequences if phase == "decode" else "+".join((f"{sequences}x{tokens}", *rows))
        bar = "#" * round(max(width - 46, 0) * rates[key] / most) if most else ""
        graph = Text(f"{phase} {shape}")
        table.add_row(graph, _rate(rates[key]), f"{totals[key]} times", Text(bar))
    return table


def _latencies(state: State) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_row("", "p50", "p95", "p99", style="dim")
    for name, label in _LATENCIES.items():
        told = state["latencies"][name]
        table.add_row(
            label,
            *("-" if q is None else _duration(q) for q in told["quantiles"]),
            _span(told["minutes"]),
        )
    return table


def _span(minutes: int) -> str:
    if not minutes:
        return "since the start"
    return "last minute" if minutes == 1 else f"last {minutes} minutes"


def _rate(value: float | None) -> str:
    if value is None:
        return "-/s"
    return f"{value:.0f}/s" if value >= 10 or not value else f"{value:.1f}/s"


def _duration(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
