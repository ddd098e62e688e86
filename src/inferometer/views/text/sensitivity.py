"""What moves a plan or a training step, on a terminal: parameters by effect, targets, platforms, models, use cases."""

from __future__ import annotations

from typing import Any, cast

from ...base.units import count, money, percent, seconds, si, size
from ...sensitivity.evaluation import METRICS
from ...sensitivity.findings import binding_text, factor_text, limit_text, percent_change, with_unit
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
from ...sensitivity.training_sensitivity import METRICS as TRAINING_METRICS
from ...sensitivity.training_sensitivity import TrainingSensitivity, ranked_figures
from .document import Cell, Column, Page, Paragraph, Part, TextTable
from .terminal import header

COLUMNS = {
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "output_throughput": "tokens/s",
    "cost_per_million_output_tokens": "cost",
    "full_output_throughput": "tokens/s",
}
SHOWN = 10  # platforms of a table


def sensitivity(report: Sensitivity) -> Page:
    """The header, and the tables of whatever the report answers."""
    parts: list[Part] = [Paragraph(plan_header(report), style="bold")]
    if not report.feasible:
        parts.append(Paragraph(f"✗ infeasible: {report.reason}", style="bold red"))
    parts += [Paragraph(report.summary), Paragraph("")]
    if report.figures:
        parts += [_parameters(report), Paragraph(_ELASTIC, style="dim")]
    if report.targets:
        parts.append(_targets(report))
    parts += [_size(one) for one in report.size]
    if report.compare:
        parts += [_lost(report.compare), _kept(report.compare)]
    if report.usecases:
        parts += [_served(report.usecases), _demands(report.usecases), Paragraph(_DEMAND, style="dim")]
    parts += [Paragraph(f"! {warning}", style="yellow") for warning in report.warnings]
    return Page(parts)


def plan_header(report: Sensitivity) -> str:
    """Model, machine and workload, as `analyze` says it; use cases have workloads of their own."""
    text = header(cast(Any, report))
    return text.partition(" · batch ")[0] if report.usecases else text


# ------------------------------------------------------------------ parameters

_ELASTIC = (
    "Cost assumes the current price per GPU-hour. --json and --csv have the "
    "elasticities: ln(metric ratio) / ln(figure ratio)."
)


def largest_change(effect: ParameterEffect, fields: Any = COLUMNS) -> float:
    """The largest change that a parameter makes, of the metrics that are shown."""
    changes = [change.change[field] for change in (effect.up, effect.down) for field in fields]
    return max(abs(change or 0.0) for change in changes)


def _parameters(report: Sensitivity) -> TextTable:
    fields = [field for field in COLUMNS if getattr(report.metrics, field) is not None]
    ranks = {"ttft_ms": 0, "tpot_ms": 0, "output_throughput": 2, "cost_per_million_output_tokens": 1}
    table = TextTable(
        [
            Column("figure", "<", folds=True),
            Column("now", priority=3),
            *(Column(f"{COLUMNS[f]}\n{_load(report, f)}".rstrip(), priority=ranks.get(f, 4)) for f in fields),
        ],
        "change in % when a figure rises by 10%, and when it falls by 10%",
    )
    table.add_row("baseline", "", *(_base(report, field) for field in fields), style="bold", section=True)
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
    return seconds(value / 1e3) if field.endswith("_ms") else money(value) if "cost" in field else f"{value:,.0f}"


def _cell(up: float | None, down: float | None) -> Cell:
    """``−7.2 +8.8``; an exact nothing is a plain 0."""
    if up is None or down is None:
        return Cell("–", "dim")
    if not up and not down:
        return Cell("0", "dim")
    if max(abs(up), abs(down)) < 0.0005:
        return Cell("<0.05", "dim")
    text = "  ".join(f"{'−' if x < 0 else '+' if x else ''}{abs(x) * 100:.1f}" for x in (up, down))
    return Cell(text, "bold" if max(abs(up), abs(down)) >= 0.01 else "")


def _targets(report: Sensitivity) -> TextTable:
    heads = (limit_text(metric, target.limit) for metric, target in report.targets.items())
    columns = [Column("figure", "<", folds=True), Column("now", priority=1)]
    table = TextTable(
        [*columns, *(Column(head, folds=True) for head in heads)], ("value that each figure needs, on its own")
    )
    for key, effect in report.figures.items():
        cells = [_solution(target.figures[key], effect, target) for target in report.targets.values()]
        if effect.used:
            table.add_row(effect.label, with_unit(effect.value, effect.unit), *cells)
    return table


def _solution(one: Solution, effect: ParameterEffect, target: Target) -> Cell:
    value = f"{with_unit(one.value, effect.unit)} " if one.value is not None else ""
    if one.status == "never":
        unit = next(m.unit for m in METRICS.values() if m.field == target.metric)
        return Cell(f"no: {one.best:.4g} {unit} at best" if one.best is not None else "cannot", "dim")
    if one.factor is None:
        return Cell("any value", "green")
    text = f"{value}{factor_text(one.factor)}"
    return Cell(f"met until {text}", "green") if one.status == "holds" else Cell(text, "bold")


# ------------------------------------------------------------------ platforms


def _size(one: Size) -> TextTable:
    table = TextTable(
        [
            Column("GPUs"),
            Column("layout", "<"),
            Column("memory", priority=3),
            Column("TTFT", priority=1),
            Column("TPOT", priority=1),
            Column("tokens/s", priority=2),
            Column("$/h", priority=2),
            Column("shortfall", "<", folds=True),
        ],
        f"{one.gpu}: platforms up to the smallest that works",
        elsewhere="--json",
    )
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
        "none" if platform.works else platform.reason,
    ]


def _ms(value: float | None) -> str:
    return "" if value is None else seconds(value / 1e3)


# ------------------------------------------------------------------ models and use cases

_DEMAND = (
    "Per GPU: FLOP/s that TTFT needs, bandwidth that TPOT needs, memory that the batch needs. For each, the other two "
    "stay as they are or rise to what is needed. The largest factor is the limit."
)


def _lost(rows: list[ComparisonRow]) -> TextTable:
    figures = {"TTFT": 0, "TPOT": 0, "tokens/s": 2}
    table = TextTable(
        [
            Column("model", "<", folds=True),
            Column("size", priority=3),
            *(
                column
                for name, rank in figures.items()
                for column in (Column(name, priority=rank), Column("", priority=rank + 1, name=f"factor of {name}"))
            ),
            Column("fits", "<", folds=True, priority=1),
        ],
        "on this machine",
        elsewhere="--json",
    )
    first = rows[0]
    for row in rows:
        cells = []
        for field in ("ttft_ms", "tpot_ms", "output_throughput"):
            value, before = getattr(row, field), getattr(first, field)
            shown = _ms(value) if field.endswith("_ms") else f"{value:,.0f}" if value else ""
            cells += [shown, factor_text(value / before) if value and before and row is not first else ""]
        table.add_row(
            row.label, count(row.params), *cells, "yes" if row.fits else f"no: needs {size(row.demand.memory_value)}"
        )
    return table


def _kept(rows: list[ComparisonRow]) -> TextTable:
    aims = " and ".join(limit_text(metric, value) for metric, value in rows[0].limits.items())
    ranks = {"FLOP/s": 0, "bandwidth": 0, "memory": 1, "or: FLOP/s alone": 3, "bandwidth alone": 3, "all speeds": 4}
    columns = [Column(name, priority=rank) for name, rank in ranks.items()]
    table = TextTable(
        [Column("model", "<", folds=True), *columns, Column("or: GPUs", priority=2)],
        f"to match {aims}",
        elsewhere="--json",
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


def _served(rows: list[ComparisonRow]) -> TextTable:
    table = TextTable(
        [
            Column("use case", "<", folds=True),
            Column("in", priority=4),
            Column("out", priority=4),
            Column("batch", priority=4),
            Column("TTFT", priority=1),
            Column("limit", priority=2, name="TTFT limit"),
            Column("TPOT", priority=1),
            Column("limit", priority=2, name="TPOT limit"),
            Column("memory", priority=3),
            Column("met", "^"),
            Column("needs GPUs", priority=1),
        ],
        "on this machine",
        elsewhere="--json",
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
            Cell("✓", "green", ascii="yes") if row.meets else Cell("✗", "red", ascii="no"),
            _platform(row),
        )
    return table


def _demands(rows: list[ComparisonRow]) -> TextTable:
    table = TextTable(
        [
            Column("use case", "<", folds=True),
            *(
                column
                for name, rank in {"FLOP/s": 1, "bandwidth": 1, "memory": 3}.items()
                for column in (Column(name, priority=rank), Column("", priority=rank + 1, name=f"factor of {name}"))
            ),
            Column("limit", "<"),
        ],
        "what each use case demands of a GPU",
        elsewhere="--json",
    )
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


# ------------------------------------------------------------------ training

TRAINING_COLUMNS = {"step_seconds": "step", "tokens_per_second": "tokens/s", "model_flops_utilization": "MFU"}
_TRAINING_ELASTIC = "--json and --csv have the elasticities: ln(metric ratio) / ln(figure ratio)."
_SIZES = {
    "tp": "tensor_parallel_size",
    "cp": "context_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "ep": "expert_model_parallel_size",
}


def training_sensitivity(result: TrainingSensitivity) -> Page:
    """The header, what each figure moves, and what the targets take."""
    plan, recipe = result.plan, result.recipe
    layout = " ".join(f"{short} {plan[name]}" for short, name in _SIZES.items() if plan[name] > 1)
    head = f"{result.model.name} · {plan['gpus']} × {result.device['name']} · {layout or 'one GPU'} · "
    head += f"batch {recipe['global_batch_size']:,}"
    parts: list[Part] = [Paragraph(head, style="bold")]
    if not result.feasible:
        parts.append(Paragraph(f"✗ infeasible: {result.reason}", style="bold red"))
    parts += [
        Paragraph(result.summary),
        Paragraph(""),
        _training_figures(result),
        Paragraph(_TRAINING_ELASTIC, style="dim"),
    ]
    if result.targets:
        parts.append(_training_targets(result))
    parts += [Paragraph(f"! {warning}", style="yellow") for warning in result.warnings]
    return Page(parts)


def _training_order(result: TrainingSensitivity) -> list[tuple[str, ParameterEffect]]:
    """Figures by effect, each with its parts below it; all speeds at once are last."""
    rows: list[tuple[str, ParameterEffect]] = []
    for key, effect in ranked_figures(result):
        parts = [(k, one) for k, one in result.figures.items() if one.within == key and one.used]
        rows += [(key, effect), *parts]
    return [*rows, (ALL_SPEEDS, result.figures[ALL_SPEEDS])]


def _training_figures(result: TrainingSensitivity) -> TextTable:
    metrics = result.metrics
    table = TextTable(
        [
            Column("figure", "<", folds=True),
            Column("now", priority=3),
            *(Column(title) for title in TRAINING_COLUMNS.values()),
        ],
        "change in % when a figure rises by 10%, and when it falls by 10%",
    )
    base = (
        seconds(metrics.step_seconds),
        si(metrics.tokens_per_second),
        percent(metrics.model_flops_utilization),
    )
    table.add_row("baseline", "", *base, style="bold", section=True)
    for _, effect in _training_order(result):
        label = f"  {effect.label}" if effect.within and effect.within != ALL_SPEEDS else effect.label
        changes = ((effect.up.change[field], effect.down.change[field]) for field in TRAINING_COLUMNS)
        cells = (f"{percent_change(up)}  {percent_change(down)}" for up, down in changes)
        table.add_row(label, with_unit(effect.value, effect.unit), *cells)
    return table


def _training_targets(result: TrainingSensitivity) -> TextTable:
    """What each figure alone must be."""
    table = TextTable(
        [
            Column("figure alone", "<", folds=True),
            *(Column(f"{name} {one.limit:g}") for name, one in result.targets.items()),
        ],
        elsewhere="--json",
    )
    table.add_row(
        "now", *(f"{one.now:.4g} {TRAINING_METRICS[name].unit}" for name, one in result.targets.items()), style="bold"
    )
    for key, effect in _training_order(result):
        cells = []
        for target in result.targets.values():
            one = target.figures[key]
            value = with_unit(one.value, effect.unit) if one.value is not None else ""
            texts = {"reached": f"{value} {factor_text(one.factor)}".strip(), "never": "never"}
            holds = "holds" if one.factor is None else f"holds to {factor_text(one.factor)}"
            style = {"reached": "green", "never": "red"}.get(one.status, "")
            cells.append(Cell(texts.get(one.status, holds), style))
        table.add_row(effect.label, *cells)
    return table
