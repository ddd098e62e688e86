"""Measured beside predicted, for people: tables in a terminal, and four pictures.

write_validation(validation, "out", "llama-2-7b · 1 × RTX 3090")   # errors.png, values.png, scatter.png, breakdown.png
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...base.units import milliseconds, percent, plural, size
from ...serving.metrics import LABELS
from ...specs.structs import Calibration
from ...validation.validate import ErrorStatistics, FigureComparison, MemoryComparison, Validation
from .. import files
from ..plots.canvas import brief, clean, page, picture, style
from ..plots.palette import BLUE, FAINT, GREEN, GRID, INK, MUTED, ORANGE, VERMILLION, tint
from .document import Column, Page, Paragraph, Part, TextTable
from .serving import run

FIGURES = {  # what is shown, and where -> key of the result
    (name, summary): f"{summary}_{metric}_ms"
    for metric, name in LABELS.items()
    for summary in ("mean", "median", "p90", "p99")
} | {("requests", ""): "request_throughput", ("output tokens", ""): "output_throughput"}
MEMORY_LABELS = {
    "weights": "weights",
    "kv_prefill": "KV cache after the prompt",
    "kv_total": "KV cache at the end",
    "kv_decode_delta": "KV cache of the answer",
}
BAND = 0.2
MAX_REQUESTS = 40  # of the breakdown


# ------------------------------------------------------------------ in a terminal


def comparison(header: str, validation: Validation, warnings: list[str]) -> Page:
    """Header and one line per metric."""
    lost = len(validation.outcome.rejected)
    were = "was" if lost == 1 else "were"
    parts: list[Part] = [Paragraph(clean(header), style="bold")]
    parts += [error_table(validation.errors)] if validation.errors else []
    parts += [figure_table(validation.figures)] if validation.figures else []
    parts += [Paragraph(f"✗ {plural(lost, 'request')} {were} rejected by the simulation", style="red")] if lost else []
    return Page([*parts, *(Paragraph(f"! {warning}", style="yellow") for warning in warnings)])


def benchmark(result: Mapping[str, Any], gpu: str, validation: Validation | None) -> Page:
    """A live server's run, what failed, and beside it what is predicted, if a GPU was named."""
    failed = [Paragraph(f"✗ {count:,} failed: {why}", style="red") for why, count in result["failures"].items()]
    parts: list[Part | Page] = [run(result), *failed]
    if validation is not None:
        parts += [Paragraph(f"compared with the prediction for {gpu}:", style="bold"), error_table(validation.errors)]
    return Page(parts)


def error_table(errors: dict[str, ErrorStatistics]) -> TextTable:
    """Means and relative errors of every metric."""
    table = TextTable(
        [
            Column("", "<", name="latency"),
            Column("measured"),
            Column("predicted"),
            Column("error of mean", priority=1),
            Column("mean error", style="bold"),
            Column("median", priority=3, name="median error"),
            Column("worst", priority=2, name="worst error"),
            Column("bias", priority=4),
            Column("r", priority=5),
            Column("rows", priority=5),
        ],
        elsewhere="--json",
    )
    for metric, e in errors.items():
        table.add_row(
            LABELS[metric],
            milliseconds(e.measured_mean_ms),
            milliseconds(e.predicted_mean_ms),
            _signed(e.mean_error),
            *(_share(x) for x in (e.mape, e.median_ape, e.max_ape)),
            _signed(e.bias),
            "–" if e.pearson_r is None else f"{e.pearson_r:.3f}",
            f"{e.requests:,}",
        )
    return table


def figure_table(figures: dict[str, FigureComparison]) -> TextTable:
    """Figures of a whole run, as the benchmark reports them and as they are predicted."""
    names = [Column("the run", "<"), Column("", "<", name="statistic")]
    table = TextTable([*names, Column("measured"), Column("predicted"), Column("error")])
    for (name, summary), key in FIGURES.items():
        if key in figures:
            figure, form = figures[key], milliseconds if key.endswith("_ms") else _per_second
            table.add_row(name, summary, form(figure.measured), form(figure.predicted), _signed(figure.error))
    return table


def _per_second(rate: float) -> str:
    return f"{rate:,.4g}/s"


def memory_table(comparisons: list[MemoryComparison]) -> TextTable:
    """Weights and cache, measured beside predicted."""
    lengths = [Column("in", priority=1), Column("out", priority=1)]
    names = Column("", "<", name="memory", folds=True)
    table = TextTable([names, *lengths, Column("measured"), Column("predicted"), Column("error")], "memory")
    for h in comparisons:
        table.add_row(
            MEMORY_LABELS[h.what],
            f"{h.input_tokens:,}",
            f"{h.output_tokens:,}",
            size(h.measured_bytes),
            size(h.predicted_bytes),
            _signed(h.error),
        )
    return table


def calibration_table(made: Calibration, warning: str = "") -> Page:
    """What a calibration changes, and which error it leaves: on its own rows, and on rows that it did not see."""
    change = (
        f"prefill × {made.prefill:.3f}, decode × {made.decode:.3f}, {made.request * 1e3:+.2f} ms a request, from "
        f"{plural(made.requests, 'request')}"
    )
    columns = [Column("mean error", "<"), Column("before"), Column("after"), Column("held out")]
    table = TextTable(columns, elsewhere="--json")
    for metric, error in made.error.items():
        table.add_row(LABELS[metric], *(_share(error.get(key)) for key in ("before", "after", "unseen")))
    warnings = [Paragraph(f"! {warning}", style="yellow")] if warning else []
    return Page([Paragraph(f"calibration: {change}", style="bold"), table, *warnings])


def _share(value: float | None) -> str:
    return "–" if value is None else percent(value)


def _signed(value: float | None) -> str:
    return "–" if value is None or value != value else f"{round(value * 100, 1) + 0.0:+.1f}%"


# ------------------------------------------------------------------ pictures


def write_validation(validation: Validation, folder: str | Path, subtitle: str) -> list[Path]:
    """The four pictures, as files of a folder."""
    target = files.folder(folder)
    made: dict[str, Callable[[Validation, str], Any]] = {
        "errors": error_picture,
        "values": value_picture,
        "scatter": scatter_picture,
        "breakdown": breakdown_picture,
    }
    with style():
        return [files.write(target / f"{name}.png", picture(draw(validation, subtitle))) for name, draw in made.items()]


def _panels(figure: Any, count: int, low: float, high: float) -> list[Any]:
    """Axes beside each other, with what all of them share."""
    wide = 0.94 / count
    panels = [figure.add_axes((0.055 + k * wide, low, wide - 0.05, high - low)) for k in range(count)]
    for axes in panels:
        axes.grid(True, color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8.5, length=3, colors=MUTED)
    return panels


def _dot(count: int) -> float:
    return 22.0 if count < 100 else 9.0 if count < 1000 else 2.5


def error_picture(validation: Validation, subtitle: str) -> Any:
    """Relative error of every request over its prompt's length, with a band of 20% and the statistics."""
    figure = page(4.1 * len(validation.errors) + 0.4, 4.3, "Relative error of each request", subtitle)
    for axes, (metric, e) in zip(
        _panels(figure, len(validation.errors), 0.12, 0.7), validation.errors.items(), strict=True
    ):
        off = validation.relative(metric) * 100
        there = np.isfinite(off)
        axes.axhspan(-BAND * 100, BAND * 100, color=tint(GREEN, 0.13), linewidth=0)
        axes.axhline(0, color=INK, linewidth=1)
        axes.scatter(
            validation.trace.input_tokens[there],
            off[there],
            s=_dot(int(there.sum())),
            color=BLUE,
            linewidth=0,
            alpha=0.75,
        )
        axes.text(0, 1.12, LABELS[metric], transform=axes.transAxes, fontsize=10, weight="bold")
        axes.set_xlabel("prompt tokens", fontsize=9)
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:+.0f}%" if y else "0")
        if not there.any():
            continue
        axes.axhline(float(off[there].mean()), color=VERMILLION, linewidth=1.3, linestyle=(0, (5, 3)))
        reach = max(25.0, float(np.abs(off[there]).max()) * 1.1)
        axes.set_ylim(-reach, reach)
        inside = float((np.abs(off[there]) <= BAND * 100).mean())
        axes.text(
            0,
            1.04,
            f"mean {_share(e.mape)} · median {_share(e.median_ape)} · worst {_share(e.max_ape)} · "
            f"{percent(inside)} within 20%",
            transform=axes.transAxes,
            fontsize=7.8,
            color=MUTED,
        )
        axes.text(
            0.99, 0.02, f"bias {_signed(e.bias)}", transform=axes.transAxes, ha="right", fontsize=8.5, color=VERMILLION
        )
    return figure


def value_picture(validation: Validation, subtitle: str) -> Any:
    """Measured and predicted of every request, in the order of what was measured."""
    count = len(validation.errors)
    figure = page(4.1 * count + 0.4, 4.1, "Measured and predicted, requests sorted by what was measured", subtitle)
    for axes, metric in zip(_panels(figure, count, 0.12, 0.76), validation.errors, strict=True):
        m, p = validation.measured[metric] / 1e3, validation.predicted[metric] / 1e3
        there = np.isfinite(m) & np.isfinite(p)
        order = np.argsort(m[there], kind="stable")
        place = np.arange(1, len(order) + 1)
        axes.scatter(place, p[there][order], s=_dot(len(order)), color=ORANGE, linewidth=0, label="predicted")
        axes.plot(place, m[there][order], color=BLUE, linewidth=1.8, label="measured")
        axes.text(0, 1.04, LABELS[metric], transform=axes.transAxes, fontsize=10, weight="bold")
        axes.set_xlabel("requests", fontsize=9)
        if there.any() and m[there].min() > 0 and m[there].max() > 30 * m[there].min():
            axes.set_yscale("log")
            _log_ticks(axes.yaxis, *axes.get_ylim())
        else:
            axes.set_ylim(0, None)
            axes.yaxis.set_major_formatter(lambda y, _: brief(y))
        axes.legend(frameon=False, fontsize=8.5, labelcolor=MUTED, loc="upper left", handlelength=1.2)
    return figure


def scatter_picture(validation: Validation, subtitle: str) -> Any:
    """Predicted over measured with the diagonal, a band of 20% around it, and the correlation."""
    figure = page(4.1 * len(validation.errors) + 0.4, 4.9, "Predicted over measured", subtitle)
    for axes, (metric, e) in zip(
        _panels(figure, len(validation.errors), 0.11, 0.79), validation.errors.items(), strict=True
    ):
        m, p = validation.measured[metric] / 1e3, validation.predicted[metric] / 1e3
        there = np.isfinite(m) & np.isfinite(p) & (m > 0) & (p > 0)
        axes.text(0, 1.04, LABELS[metric], transform=axes.transAxes, fontsize=10, weight="bold")
        r = "" if e.pearson_r is None else f"r = {e.pearson_r:.4f}, "
        axes.text(
            1, 1.04, f"{r}{e.requests:,} requests", transform=axes.transAxes, fontsize=8.5, color=MUTED, ha="right"
        )
        if not there.any():
            continue
        low, high = min(m[there].min(), p[there].min()), max(m[there].max(), p[there].max())
        axes.set_xscale("log")
        axes.set_yscale("log")
        ends = np.array([low / 1.15, high * 1.15])
        axes.fill_between(ends, ends * (1 - BAND), ends * (1 + BAND), color=tint(GREEN, 0.13), linewidth=0)
        axes.plot(ends, ends, color=INK, linewidth=1)
        axes.scatter(m[there], p[there], s=_dot(int(there.sum())), color=BLUE, linewidth=0, alpha=0.75, zorder=3)
        for axis in (axes.xaxis, axes.yaxis):
            _log_ticks(axis, *ends)
        axes.set_xlim(*ends)
        axes.set_ylim(*ends)
        axes.set_xlabel("measured", fontsize=9)
    return figure


def _log_ticks(axis: Any, low: float, high: float) -> None:
    """Few round numbers, however short the range is: a decade's 1, 2 and 5, or five in a row."""
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter, NullLocator

    decades = np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    ticks = [k * 10.0**d for d in decades for k in ((1,) if len(decades) > 4 else (1, 2, 5))]
    if sum(low <= t <= high for t in ticks) < 3:
        ticks = list(MaxNLocator(4).tick_values(low, high))
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(lambda x, _: brief(x))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def breakdown_picture(validation: Validation, subtitle: str) -> Any:
    """Prefill and decode of single requests, measured above predicted; of many requests, a fair choice by length."""
    if not {"ttft", "e2el"} <= set(validation.measured):
        figure = page(9.0, 1.6, "Prefill and decode", subtitle)
        figure.text(0.03, 0.3, "needs measured TTFT and E2E", color=MUTED)
        return figure
    m, p = validation.measured, validation.predicted
    there = np.flatnonzero(np.isfinite(m["e2el"]) & np.isfinite(p["e2el"]) & np.isfinite(m["ttft"]))
    order = there[np.argsort(m["e2el"][there], kind="stable")]
    shown = (
        order[np.unique(np.linspace(0, len(order) - 1, min(MAX_REQUESTS, len(order))).round().astype(int))]
        if len(order)
        else order
    )
    count = f"{len(shown)} of {len(order):,} requests" if len(shown) < len(order) else f"{len(order):,} requests"
    tall = 1.9 + 0.27 * len(shown)
    figure = page(10.0, tall, f"Prefill and decode of {count}, measured above predicted", subtitle)
    axes = figure.add_axes((0.125, 0.62 / tall, 0.86, 1 - 1.75 / tall))
    rows = np.arange(len(shown))
    for values, shift, shade in ((m, -0.2, 1.0), (p, 0.2, 0.45)):
        first, whole = values["ttft"][shown] / 1e3, values["e2el"][shown] / 1e3
        axes.barh(rows + shift, first, 0.38, color=tint(ORANGE, shade), linewidth=0)
        axes.barh(rows + shift, whole - first, 0.38, left=first, color=tint(BLUE, shade), linewidth=0)
    for row, index in enumerate(shown.tolist()):
        off = p["e2el"][index] / m["e2el"][index] - 1
        end = max(m["e2el"][index], p["e2el"][index]) / 1e3
        axes.text(
            end,
            row,
            f" {_signed(float(off))}",
            va="center",
            fontsize=7.5,
            color=MUTED if abs(off) <= BAND else VERMILLION,
        )
    given, made = validation.trace.input_tokens, validation.trace.output_tokens
    axes.set_yticks(rows, [f"{given[i]:,} in, {made[i]:,} out" for i in shown], fontsize=7.5)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.tick_params(labelsize=7.5, length=0, colors=MUTED)
    axes.xaxis.set_major_formatter(lambda x, _: brief(x))
    axes.grid(True, axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.08)
    _key(axes, tall)
    return figure


def _key(axes: Any, tall: float) -> None:
    from matplotlib.patches import Patch

    entries = [("prefill (TTFT)", ORANGE), ("decode", BLUE), ("predicted: lighter", FAINT)]
    axes.legend(
        handles=[Patch(facecolor=color, label=label) for label, color in entries],
        frameon=False,
        fontsize=8.5,
        labelcolor=MUTED,
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=3,
        handlelength=1,
        handleheight=1,
    )
