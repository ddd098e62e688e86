"""What moves a training step, for people in a terminal: figures of the machine by effect, and targets."""

from __future__ import annotations

from ...base.units import percent, seconds, si
from ...sensitivity.findings import factor_text, percent_change, with_unit
from ...sensitivity.parameters import ALL_SPEEDS
from ...sensitivity.sensitivity_report import ParameterEffect
from ...sensitivity.training_sensitivity import METRICS, TrainingSensitivity, ranked_figures
from .document import Cell, Column, Page, Paragraph, Part, TextTable

COLUMNS = {"step_seconds": "step", "tokens_per_second": "tokens/s", "model_flops_utilization": "MFU"}
_ELASTIC = "--json and --csv have the elasticities: ln(metric ratio) / ln(figure ratio)."


def shown(result: TrainingSensitivity) -> Page:
    """The header, what each figure moves, and what the targets take."""
    plan, recipe = result.plan, result.recipe
    layout = " ".join(f"{short} {plan[name]}" for short, name in _SIZES.items() if plan[name] > 1)
    head = f"{result.model.name} · {plan['gpus']} × {result.device['name']} · {layout or 'one GPU'} · "
    head += f"batch {recipe['global_batch_size']:,}"
    parts: list[Part] = [Paragraph(head, style="bold")]
    if not result.feasible:
        parts.append(Paragraph(f"✗ infeasible: {result.reason}", style="bold red"))
    parts += [Paragraph(result.summary), Paragraph(""), _figures(result), Paragraph(_ELASTIC, style="dim")]
    if result.targets:
        parts.append(_targets(result))
    parts += [Paragraph(f"! {warning}", style="yellow") for warning in result.warnings]
    return Page(parts)


_SIZES = {
    "tp": "tensor_parallel_size",
    "cp": "context_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "ep": "expert_model_parallel_size",
}


def _ordered(result: TrainingSensitivity) -> list[tuple[str, ParameterEffect]]:
    """Figures by effect, each with its parts below it; all speeds at once are last."""
    rows: list[tuple[str, ParameterEffect]] = []
    for key, effect in ranked_figures(result):
        parts = [(k, one) for k, one in result.figures.items() if one.within == key and one.used]
        rows += [(key, effect), *parts]
    return [*rows, (ALL_SPEEDS, result.figures[ALL_SPEEDS])]


def _figures(result: TrainingSensitivity) -> TextTable:
    metrics = result.metrics
    table = TextTable(
        [Column("figure", "<", folds=True), Column("now", priority=3), *(Column(title) for title in COLUMNS.values())],
        "change in % when a figure rises by 10%, and when it falls by 10%",
    )
    base = (
        seconds(metrics.step_seconds),
        si(metrics.tokens_per_second),
        percent(metrics.model_flops_utilization),
    )
    table.add_row("baseline", "", *base, style="bold", section=True)
    for _, effect in _ordered(result):
        label = f"  {effect.label}" if effect.within and effect.within != ALL_SPEEDS else effect.label
        changes = ((effect.up.change[field], effect.down.change[field]) for field in COLUMNS)
        cells = (f"{percent_change(up)}  {percent_change(down)}" for up, down in changes)
        table.add_row(label, with_unit(effect.value, effect.unit), *cells)
    return table


def _targets(result: TrainingSensitivity) -> TextTable:
    """What each figure alone must be."""
    table = TextTable(
        [
            Column("figure alone", "<", folds=True),
            *(Column(f"{name} {one.limit:g}") for name, one in result.targets.items()),
        ],
        elsewhere="--json",
    )
    table.add_row("now", *(f"{one.now:.4g} {METRICS[name].unit}" for name, one in result.targets.items()), style="bold")
    for key, effect in _ordered(result):
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
