"""What moves a plan, for people in a terminal: parameters by effect, targets, platforms, models and use cases."""

from __future__ import annotations

from typing import Any, cast

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ...base.units import count, seconds, size
from ...sensitivity.evaluation import METRICS
from ...sensitivity.findings import binding_text, factor_text, limit_text, with_unit
from ...sensitivity.parameters import ALL_SPEEDS
from ...sensitivity.sensitivity_report import (
    ComparisonRow,
    ParameterEffect,
    Platform,
    Sensitivity,
    Size,
    Solution,
    Target,
)
from .terminal import header

COLUMNS = {
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "output_throughput": "tokens/s",
    "cost_per_million_output_tokens": "cost",
    "full_output_throughput": "tokens/s",
}
SHOWN = 10  # platforms of a table


def sensitivity(report: Sensitivity) -> Group:
    """The header, and the tables of whatever the report answers."""
    parts: list[Any] = [Text(plan_header(report), style="bold")]
    if not report.feasible:
        parts.append(Text(f"✗ does not work: {report.reason}", style="bold red"))
    parts.append(Text(report.summary))
    if report.figures:
        parts += [_parameters(report), Text(_ELASTIC, "dim")]
    if report.targets:
        parts.append(_targets(report))
    parts += [_size(one) for one in report.size]
    if report.compare:
        parts += [_lost(report.compare), _kept(report.compare)]
    if report.usecases:
        parts += [_served(report.usecases), _demands(report.usecases), Text(_DEMAND, "dim")]
    parts += [Text(f"! {warning}", style="yellow") for warning in report.warnings]
    return Group(*parts)


def plan_header(report: Sensitivity) -> str:
    """Model, machine and workload, as `analyze` says it; use cases have workloads of their own."""
    text = header(cast(Any, report))
    return text.partition(" · batch ")[0] if report.usecases else text


def _table(title: str, *columns: str) -> Table:
    """Left-aligned names, then numbers to the right."""
    table = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False, padding=(0, 1, 0, 0)
    )
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=not number)
    return table


# ------------------------------------------------------------------ parameters

_ELASTIC = "Cost is at today's price. --json and --csv have the elasticities: ln(metric ratio) / ln(figure ratio)."


def largest_change(effect: ParameterEffect, fields: Any = COLUMNS) -> float:
    """The largest change that a parameter makes, of the metrics that are shown."""
    changes = [change.change[field] for change in (effect.up, effect.down) for field in fields]
    return max(abs(change or 0.0) for change in changes)


def _parameters(report: Sensitivity) -> Table:
    fields = [field for field in COLUMNS if getattr(report.metrics, field) is not None]
    heads = [f"{COLUMNS[field]}\n{_load(report, field)}" for field in fields]
    table = _table("change in % for 10% more and for 10% less of a figure", "figure", "now", *heads)
    table.add_row("as it is", "", *(_base(report, field) for field in fields), style="bold", end_section=True)
    for effect in ranked(report):
        label = f"  {effect.label}" if effect.within == "flops" else effect.label
        cells = [_cell(effect.up.change[field], effect.down.change[field]) for field in fields]
        table.add_row(label, with_unit(effect.value, effect.unit), *cells)
    unused = [key for key, effect in report.figures.items() if not effect.used and "links." in key]
    for link in dict.fromkeys(key.split(".")[1] for key in unused):
        table.add_row(f"{link} bandwidth, latency", "unused", *("0" for _ in fields), style="dim")
    return table


def ranked(report: Sensitivity) -> list[ParameterEffect]:
    """Parameters that the plan uses, strongest first, each with its parts below it; all speeds at once are last."""
    used = {key: effect for key, effect in report.figures.items() if effect.used}
    whole = sorted((key for key in used if not used[key].within), key=lambda key: -largest_change(used[key]))
    return [used[key] for first in whole for key in (first, *(k for k in used if used[k].within == first))] + [
        used[ALL_SPEEDS]
    ]


def _load(report: Sensitivity, field: str) -> str:
    if field in ("ttft_ms", "tpot_ms"):
        return ""
    return f"batch {report.metrics.full_batch_size if field.startswith('full_') else report.workload['batch_size']:,}"


def _base(report: Sensitivity, field: str) -> str:
    value = float(getattr(report.metrics, field))
    return seconds(value / 1e3) if field.endswith("_ms") else f"${value:.3g}" if "cost" in field else f"{value:,.0f}"


def _cell(up: float | None, down: float | None) -> Text:
    """``−7.2 +8.8``; an exact nothing is a plain 0."""
    if up is None or down is None:
        return Text("–", "dim")
    if not up and not down:
        return Text("0", "dim")
    if max(abs(up), abs(down)) < 0.0005:
        return Text("<0.05", "dim")
    text = "  ".join(f"{'−' if x < 0 else '+' if x else ''}{abs(x) * 100:.1f}" for x in (up, down))
    return Text(text, "bold" if max(abs(up), abs(down)) >= 0.01 else "")


def _targets(report: Sensitivity) -> Table:
    heads = (limit_text(metric, target.limit) for metric, target in report.targets.items())
    table = _table("each figure alone", "figure", "now", *heads)
    for key, effect in report.figures.items():
        cells = [_solution(target.figures[key], effect, target) for target in report.targets.values()]
        if effect.used:
            table.add_row(effect.label, with_unit(effect.value, effect.unit), *cells)
    return table


def _solution(one: Solution, effect: ParameterEffect, target: Target) -> Text:
    value = f"{with_unit(one.value, effect.unit)} " if one.value is not None else ""
    if one.status == "never":
        unit = next(m.unit for m in METRICS.values() if m.field == target.metric)
        return Text(f"cannot: {one.best:.4g} {unit} at best" if one.best is not None else "cannot", "dim")
    if one.factor is None:
        return Text("holds at any value", "green")
    text = f"{value}{factor_text(one.factor)}"
    return Text(f"holds to {text}", "green") if one.status == "holds" else Text(text, "bold")


# ------------------------------------------------------------------ platforms


def _size(one: Size) -> Table:
    table = _table(
        f"{one.gpu}: up to the smallest that does",
        "GPUs",
        "layout",
        "memory",
        "TTFT",
        "TPOT",
        "tokens/s",
        "$/h",
        "what it lacks",
    )
    table.columns[-1].justify = "left"
    legal = [platform for platform in one.tried if platform.binding != "layout"] or one.tried
    for platform in legal[-SHOWN:]:
        table.add_row(*_platform_cells(platform), style="bold green" if platform.works else "")
    return table


def _platform_cells(platform: Platform) -> list[str]:
    share = f"{platform.memory_share * 100:.0f}%" if platform.memory_share is not None else ""
    rate = f"{platform.output_throughput:,.0f}" if platform.output_throughput else ""
    price = f"{platform.price_per_hour:.4g}" if platform.price_per_hour else ""
    return [
        str(platform.gpus),
        platform.layout,
        share,
        _ms(platform.ttft_ms),
        _ms(platform.tpot_ms),
        rate,
        price,
        "nothing" if platform.works else platform.reason,
    ]


def _ms(value: float | None) -> str:
    return "" if value is None else seconds(value / 1e3)


# ------------------------------------------------------------------ models and use cases

_DEMAND = (
    "FLOP/s that TTFT asks for, bandwidth that TPOT asks for, memory that the batch takes, of each GPU: each "
    "beside the others as they are, or as they must be. The largest factor binds."
)


def _lost(rows: list[ComparisonRow]) -> Table:
    table = _table("if the machine stays as it is", "model", "size", "TTFT", "", "TPOT", "", "tokens/s", "", "fits")
    table.columns[-1].justify = "left"
    first = rows[0]
    for row in rows:
        cells = []
        for field in ("ttft_ms", "tpot_ms", "output_throughput"):
            value, before = getattr(row, field), getattr(first, field)
            shown = _ms(value) if field.endswith("_ms") else f"{value:,.0f}" if value else ""
            cells += [shown, factor_text(value / before) if value and before and row is not first else ""]
        table.add_row(
            row.label, count(row.params), *cells, "yes" if row.fits else f"no: takes {size(row.demand.memory_value)}"
        )
    return table


def _kept(rows: list[ComparisonRow]) -> Table:
    aims = " and ".join(limit_text(metric, value) for metric, value in rows[0].limits.items())
    table = _table(
        f"to keep {aims}",
        "model",
        "FLOP/s",
        "bandwidth",
        "memory",
        "or: FLOP/s alone",
        "bandwidth alone",
        "all speeds",
        "or: GPUs",
    )
    for row in rows[1:]:
        d = row.demand
        alone = [_alone(row.alone[key]) for key in row.alone]
        table.add_row(
            row.label,
            factor_text(d.flops),
            factor_text(d.memory_bandwidth),
            factor_text(d.memory),
            *alone,
            _platform(row),
        )
    return table


def _platform(row: ComparisonRow) -> str:
    best = row.size.smallest if row.size else None
    return f"{best.gpus} {best.layout}" if best else "none"


def _alone(solutions: dict[str, Solution]) -> str:
    """The factor on one figure at which all limits hold."""
    if any(one.status == "never" for one in solutions.values()):
        return "cannot"
    return factor_text(max((one.factor or 0.0 for one in solutions.values()), default=None))


def _served(rows: list[ComparisonRow]) -> Table:
    table = _table(
        "how this machine serves them",
        "use case",
        "in",
        "out",
        "batch",
        "TTFT",
        "limit",
        "TPOT",
        "limit",
        "memory",
        "met",
        "needs GPUs",
    )
    for row in rows:
        w = row.workload
        batch = f"{w['batch_size']}" + (f" × {w['beam_width']} beams" if w["beam_width"] > 1 else "")
        waits = (row.ttft_ms, row.limits["ttft"], row.tpot_ms, row.limits["tpot"])
        table.add_row(
            row.name,
            f"{w['input_len']:,}",
            f"{w['output_len']:,}",
            batch,
            *map(_ms, waits),
            f"{row.demand.memory * 100:.0f}%",
            Text("✓", "green") if row.meets else Text("✗", "red"),
            _platform(row),
        )
    return table


def _demands(rows: list[ComparisonRow]) -> Table:
    table = _table("what they ask of it", "use case", "FLOP/s", "", "bandwidth", "", "memory", "", "binds")
    table.columns[-1].justify = "left"
    for row in rows:
        d = row.demand
        table.add_row(
            row.name,
            with_unit(d.flops_value, "FLOP/s"),
            factor_text(d.flops),
            with_unit(d.memory_bandwidth_value, "B/s"),
            factor_text(d.memory_bandwidth),
            size(d.memory_value),
            factor_text(d.memory),
            binding_text(d.binding),
        )
    return table
