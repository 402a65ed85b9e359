"""The report as markdown, which reads as plain text too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blink_server.bench.figures import Figures, Sweep
from blink_server.bench.session import ALONE
from blink_server.bench.summary import Percentiles

_ENOUGH_FOR_P999 = 1000
_RATIOS = (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99"), ("itl", "p99"))


def markdown(figures: Sequence[Figures], sweeps: Sequence[Sweep], gpus: Sequence[str]) -> str:
    """All tables. Latencies in milliseconds, from the scheduled arrival."""
    parts = [_loads(figures, energy=bool(gpus))]
    if any(one.condition != ALONE for one in figures):
        parts.append(_inflation(figures))
    if sweeps:
        parts.append(_sweeps(sweeps))
    parts += _remarks(figures, gpus)
    return "\n\n".join(parts) + "\n"


def _loads(figures: Sequence[Figures], *, energy: bool) -> str:
    ranks = "p50 / p95 / p99 / p99.9"
    head = ["load", "condition", "succeeded", "req/s", "out tok/s"]
    head += [f"{name} ms {ranks}" for name in ("TTFT", "TPOT", "ITL", "end-to-end")]
    goodput = any(one.goodput is not None for one in figures)
    head += ["goodput req/s"] * goodput + ["GPU mJ/token"] * energy
    rows = []
    for one in figures:
        row = [one.load, one.condition, f"{one.succeeded} of {one.requests}"]
        row += [f"{one.request_throughput:.2f}", f"{one.output_token_throughput:.1f}"]
        row += [_ranks(each) for each in (one.ttft, one.tpot, one.itl, one.e2e)]
        row += [_number(one.goodput)] * goodput + [_number(one.gpu_mj_per_token)] * energy
        rows.append(row)
    return _table(head, rows)


def _inflation(figures: Sequence[Figures]) -> str:
    alone = {one.load: one for one in figures if one.condition == ALONE}
    rows = []
    for one in figures:
        if one.condition != ALONE:
            base = alone[one.load]
            pairs = [(_rank(one, *of), _rank(base, *of)) for of in _RATIOS]
            pairs.append((one.request_throughput, base.request_throughput))
            row = [f"{here / there:.2f}x" if here and there else "-" for here, there in pairs]
            rows.append([one.load, f"{one.condition} / {ALONE}", *row])
    names = [f"{latency.upper()} {rank}" for latency, rank in _RATIOS]
    return _table(["load", "ratio", *names, "throughput kept"], rows)


def _rank(figures: Figures, latency: str, rank: str) -> float | None:
    percentiles = getattr(figures, latency)
    return None if percentiles is None else float(getattr(percentiles, rank))


def _sweeps(sweeps: Sequence[Sweep]) -> str:
    head = ["condition", "saturation point req/s", "plateau req/s", "serviceable load req/s"]
    head += ["operating range", "TTFT p99 ms", "TPOT p99 ms", "throughput at its end req/s"]
    rows = []
    for one in sweeps:
        fitted = one.saturation
        reached = [_number(fitted.saturation_point), _number(fitted.plateau)]
        if fitted.plateau is None:
            reached = ["not reached", "-"]
        row = [one.condition, *reached, f"{fitted.serviceable_load:g}"]
        row += [f"<= {one.range_end:g}", _number(one.ttft_p99), _number(one.tpot_p99)]
        rows.append([*row, f"{one.throughput:.2f}"])
    return _table(head, rows) + "\n\nP99 over the operating range are geometric means of its loads."


def _remarks(figures: Sequence[Figures], gpus: Sequence[str]) -> list[str]:
    remarks = []
    for one in figures:
        where = f"{one.load}, {one.condition}"
        if not one.requests:
            remarks.append(
                f"{where}: no request arrived between warm-up and cool-down "
                "(--warm-up-secs, --cool-down-secs)."
            )
        if one.errors:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(one.errors.items()))
            remarks.append(f"{where}: errors: {kinds}.")
        if one.wrong_lengths:
            remarks.append(f"{where}: {one.wrong_lengths} answers of other lengths than asked for.")
    worst = max((one.lateness.p99 for one in figures if one.lateness), default=0.0)
    cpu = max((one.generator_cpu for one in figures), default=0.0)
    remarks.append(
        f"The generator sent at most {worst:.2f} ms late (p99) and took {cpu:.0%} of a core."
    )
    if any(one.ttft and one.ttft.count < _ENOUGH_FOR_P999 for one in figures):
        remarks.append("P99.9 of fewer than 1,000 requests is little more than their maximum.")
    if gpus:
        remarks.append(
            "Energy is that of the GPU boards alone (NVML), idle power and the whole run included: "
            + ", ".join(gpus)
            + "."
        )
    return remarks


def _ranks(of: Percentiles | None) -> str:
    if of is None:
        return "-"
    return " / ".join(_number(value) for value in (of.p50, of.p95, of.p99, of.p999))


def _number(value: float | None) -> str:
    """Three figures, or all before the point."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
