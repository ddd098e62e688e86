"""What moves a plan, for people in a terminal: figures by effect, targets, platforms, models and use cases."""

from __future__ import annotations

from typing import Any, cast

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ...base.units import count, seconds, size
from ...sensitivity.evaluation import METRICS
from ...sensitivity.findings import amount, binding, limit, times
from ...sensitivity.parameters import TOGETHER
from ...sensitivity.sensitivity_report import Figure, Row, Sensitivity, Size, Solution, Target, Tried
from .terminal import header

COLUMNS = {
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "output_throughput": "tokens/s",
    "cost_per_million_output_tokens": "cost",
    "full_output_throughput": "tokens/s",
}
SHOWN = 10  # platforms of a table


def sensitivity(found: Sensitivity) -> Group:
    """The answer to whatever was asked."""
    parts: list[Any] = [Text(about(found), style="bold")]
    if not found.feasible:
        parts.append(Text(f"✗ does not work: {found.reason}", style="bold red"))
    parts.append(Text(found.summary))
    if found.figures:
        parts += [_figures(found), Text(_ELASTIC, "dim")]
    if found.targets:
        parts.append(_targets(found))
    parts += [_size(one) for one in found.size]
    if found.compare:
        parts += [_lost(found.compare), _kept(found.compare)]
    if found.usecases:
        parts += [_served(found.usecases), _asked(found.usecases), Text(_DEMAND, "dim")]
    parts += [Text(f"! {warning}", style="yellow") for warning in found.warnings]
    return Group(*parts)


def about(found: Sensitivity) -> str:
    """What it is about, as `analyze` says it; use cases have workloads of their own."""
    text = header(cast(Any, found))
    return text.partition(" · batch ")[0] if found.usecases else text


def _table(title: str, *columns: str) -> Table:
    """Left-aligned words, then figures to the right."""
    table = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False, padding=(0, 1, 0, 0)
    )
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=not number)
    return table


# ------------------------------------------------------------------ figures

_ELASTIC = "Cost is at today's price. --json and --csv have the elasticities: ln(metric ratio) / ln(figure ratio)."


def effect(figure: Figure, fields: Any = COLUMNS) -> float:
    """The largest change that a figure makes, of those that are shown."""
    changes = [change.change[field] for change in (figure.up, figure.down) for field in fields]
    return max(abs(change or 0.0) for change in changes)


def _figures(found: Sensitivity) -> Table:
    fields = [field for field in COLUMNS if getattr(found.metrics, field) is not None]
    heads = [f"{COLUMNS[field]}\n{_load(found, field)}" for field in fields]
    table = _table("change in % for 10% more and for 10% less of a figure", "figure", "now", *heads)
    table.add_row("as it is", "", *(_base(found, field) for field in fields), style="bold", end_section=True)
    for figure in ranked(found):
        label = f"  {figure.label}" if figure.within == "flops" else figure.label
        cells = [_cell(figure.up.change[field], figure.down.change[field]) for field in fields]
        table.add_row(label, amount(figure.value, figure.unit), *cells)
    for link in dict.fromkeys(key.split(".")[1] for key, f in found.figures.items() if not f.used and "links." in key):
        table.add_row(f"{link} bandwidth, latency", "unused", *("0" for _ in fields), style="dim")
    return table


def ranked(found: Sensitivity) -> list[Figure]:
    """Figures that the plan uses, strongest first, each with its parts below it; everything at once is last."""
    used = {key: figure for key, figure in found.figures.items() if figure.used}
    whole = sorted((key for key in used if not used[key].within), key=lambda key: -effect(used[key]))
    return [used[key] for first in whole for key in (first, *(k for k in used if used[k].within == first))] + [
        used[TOGETHER]
    ]


def _load(found: Sensitivity, field: str) -> str:
    if field in ("ttft_ms", "tpot_ms"):
        return ""
    return f"batch {found.metrics.full_batch_size if field.startswith('full_') else found.workload['batch_size']:,}"


def _base(found: Sensitivity, field: str) -> str:
    value = float(getattr(found.metrics, field))
    return seconds(value / 1e3) if field.endswith("_ms") else f"${value:.3g}" if "cost" in field else f"{value:,.0f}"


def _cell(up: float | None, down: float | None) -> Text:
    """``−7.2 +8.8``; an exact nothing is a plain 0."""
    if up is None or down is None:
        return Text("–", "dim")
    if not up and not down:
        return Text("0", "dim")
    if max(abs(up), abs(down)) < 0.0005:
        return Text("<0.05", "dim")
    words = "  ".join(f"{'−' if x < 0 else '+' if x else ''}{abs(x) * 100:.1f}" for x in (up, down))
    return Text(words, "bold" if max(abs(up), abs(down)) >= 0.01 else "")


def _targets(found: Sensitivity) -> Table:
    table = _table("each figure alone", "figure", "now", *(limit(word, t.limit) for word, t in found.targets.items()))
    for key, figure in found.figures.items():
        cells = [_solution(t.figures[key], figure, t) for t in found.targets.values()]
        if figure.used:
            table.add_row(figure.label, amount(figure.value, figure.unit), *cells)
    return table


def _solution(one: Solution, figure: Figure, target: Target) -> Text:
    value = f"{amount(one.value, figure.unit)} " if one.value is not None else ""
    if one.status == "never":
        unit = next(m.unit for m in METRICS.values() if m.field == target.metric)
        return Text(f"cannot: {one.best:.4g} {unit} at best" if one.best is not None else "cannot", "dim")
    if one.factor is None:
        return Text("holds at any value", "green")
    text = f"{value}{times(one.factor)}"
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
    told = [tried for tried in one.tried if tried.binding != "layout"] or one.tried
    for tried in told[-SHOWN:]:
        table.add_row(*_tried(tried), style="bold green" if tried.works else "")
    return table


def _tried(tried: Tried) -> list[str]:
    share = f"{tried.memory_share * 100:.0f}%" if tried.memory_share is not None else ""
    rate = f"{tried.output_throughput:,.0f}" if tried.output_throughput else ""
    price = f"{tried.price_per_hour:.4g}" if tried.price_per_hour else ""
    return [
        str(tried.gpus),
        tried.layout,
        share,
        _ms(tried.ttft_ms),
        _ms(tried.tpot_ms),
        rate,
        price,
        "nothing" if tried.works else tried.reason,
    ]


def _ms(value: float | None) -> str:
    return "" if value is None else seconds(value / 1e3)


# ------------------------------------------------------------------ models and use cases

_DEMAND = (
    "FLOP/s that TTFT asks for, bandwidth that TPOT asks for, memory that the batch takes, of each GPU: each "
    "beside the others as they are, or as they must be. The largest factor binds."
)


def _lost(rows: list[Row]) -> Table:
    table = _table("if the machine stays as it is", "model", "size", "TTFT", "", "TPOT", "", "tokens/s", "", "fits")
    table.columns[-1].justify = "left"
    first = rows[0]
    for row in rows:
        cells = []
        for field in ("ttft_ms", "tpot_ms", "output_throughput"):
            value, before = getattr(row, field), getattr(first, field)
            shown = _ms(value) if field.endswith("_ms") else f"{value:,.0f}" if value else ""
            cells += [shown, times(value / before) if value and before and row is not first else ""]
        table.add_row(
            row.label, count(row.params), *cells, "yes" if row.fits else f"no: takes {size(row.demand.memory_value)}"
        )
    return table


def _kept(rows: list[Row]) -> Table:
    aims = " and ".join(limit(word, value) for word, value in rows[0].limits.items())
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
        table.add_row(row.label, times(d.flops), times(d.memory_bandwidth), times(d.memory), *alone, _platform(row))
    return table


def _platform(row: Row) -> str:
    best = row.size.found if row.size else None
    return f"{best.gpus} {best.layout}" if best else "none"


def _alone(solutions: dict[str, Solution]) -> str:
    """The factor on one figure at which all limits hold."""
    if any(one.status == "never" for one in solutions.values()):
        return "cannot"
    return times(max((one.factor or 0.0 for one in solutions.values()), default=None))


def _served(rows: list[Row]) -> Table:
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


def _asked(rows: list[Row]) -> Table:
    table = _table("what they ask of it", "use case", "FLOP/s", "", "bandwidth", "", "memory", "", "binds")
    table.columns[-1].justify = "left"
    for row in rows:
        d = row.demand
        table.add_row(
            row.name,
            amount(d.flops_value, "FLOP/s"),
            times(d.flops),
            amount(d.memory_bandwidth_value, "B/s"),
            times(d.memory_bandwidth),
            size(d.memory_value),
            times(d.memory),
            binding(d.binding),
        )
    return table
