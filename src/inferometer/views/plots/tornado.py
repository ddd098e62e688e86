"""What moves a plan, as pictures: a tornado of its figures, curves to a target, and what models and use cases ask for.

write_pictures(result, "out")      # [out/tornado.png, out/target_tpot.png]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...base.units import seconds, si, size
from ...sensitivity.findings import binding_text, factor_text, percent_change, short_label
from ...sensitivity.parameters import ALL_SPEEDS
from ...sensitivity.sensitivity_report import ComparisonRow, ParameterEffect, Sensitivity
from .. import files
from ..text.sensitivity import largest_change, plan_header
from .canvas import page, picture, style
from .palette import BLUE, FAINT, GREEN, GRID, INK, MUTED, ORANGE, PURPLE, SKY, VERMILLION

PANELS = {
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "full_output_throughput": "tokens/s at batch",
}
DEMAND_LABELS = {"flops": "FLOP/s", "memory_bandwidth": "memory bandwidth", "memory": "memory size"}
COLORS = {"flops": VERMILLION, "memory_bandwidth": BLUE, "memory": ORANGE}
LINES = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY)
ROWS = 9  # bars of a tornado
SEEN = 0.0005  # a change that is drawn


def write_pictures(result: Sensitivity, folder: str | Path) -> list[Path]:
    """Every picture of an answer."""
    target = files.folder(folder)
    with style():
        made = {word: picture(draw(result)) for word, (field, draw) in PICTURES.items() if getattr(result, field)}
    return [files.write(target / f"{word}.png", data) for word, data in made.items()]


# ------------------------------------------------------------------ the tornado


def tornado(result: Sensitivity) -> Any:
    """A bar to each side for a tenth more and a tenth less of every figure, the strongest on top."""
    fields = [field for field in PANELS if getattr(result.metrics, field) is not None]
    ranked = sorted(
        (f for f in result.figures.values() if f.used and not f.within), key=lambda f: -largest_change(f, fields)
    )
    shown = [*(f for f in ranked[:ROWS] if largest_change(f, fields) >= SEEN), result.figures[ALL_SPEEDS]]
    reach = max(0.1, *(largest_change(f, fields) for f in shown)) * 1.32
    tall = 1.75 + 0.36 * len(shown)
    figure = page(11.0, tall, _headline(result, fields), plan_header(result))
    panels = figure.subplots(1, len(fields), sharey=True, squeeze=False)[0]
    figure.subplots_adjust(left=0.175, right=0.985, top=1 - 1.06 / tall, bottom=0.5 / tall, wspace=0.09)
    for axes, field in zip(panels, fields, strict=True):
        _bars(axes, shown, field, reach)
        axes.set_title(_panel(result, field), loc="left", fontsize=10, weight="bold", pad=7)
    panels[0].set_yticks(range(len(shown)), [short_label(f) for f in shown])
    panels[0].set_ylim(len(shown) - 0.4, -0.6)
    _key(figure, (("10% more", BLUE), ("10% less", ORANGE)))
    return figure


def _headline(result: Sensitivity, fields: list[str]) -> str:
    """The finding: what each metric follows."""
    names = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "full_output_throughput": "throughput"}
    clauses = []
    for field in fields:
        first = max((f for f in result.figures.values() if not f.within), key=lambda f: largest_change(f, [field]))
        change = percent_change(first.up.change[field])
        clauses.append(f"{names[field]} follows {short_label(first)} ({change} for 10% more)")
    return " · ".join(clauses[:2])


def _bars(axes: Any, shown: list[ParameterEffect], field: str, reach: float) -> None:
    for y, figure in enumerate(shown):
        pair = ((figure.up.change[field] or 0.0, BLUE), (figure.down.change[field] or 0.0, ORANGE))
        same = pair[0][0] * pair[1][0] > 0  # a kink: both to one side, so each gets half of the height
        for number, (value, color) in enumerate(pair):
            where = y + (0.17 if number else -0.17) * same
            axes.barh(where, value, height=0.32 if same else 0.66, color=color, linewidth=0, zorder=2)
            if abs(value) >= SEEN:
                side = 1 if value > 0 else -1
                axes.text(
                    value + side * reach * 0.02,
                    where,
                    percent_change(value),
                    ha="left" if side > 0 else "right",
                    va="center",
                    fontsize=8,
                    color=INK,
                )
    axes.axvline(0, color=MUTED, linewidth=0.9, zorder=3)
    axes.set_xlim(-reach, reach)
    axes.set_xticks([-0.1, -0.05, 0, 0.05, 0.1], ["−10%", "−5%", "0", "+5%", "+10%"])
    axes.tick_params(axis="x", labelsize=8, length=2, colors=MUTED)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(True, axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def _panel(result: Sensitivity, field: str) -> str:
    value = float(getattr(result.metrics, field))
    if field.endswith("_ms"):
        return f"{PANELS[field]} · {seconds(value / 1e3)}"
    return f"{PANELS[field]} {result.metrics.full_batch_size:,} · {value:,.0f}"


def _key(figure: Any, entries: tuple[tuple[str, str], ...]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=color, label=word) for word, color in entries]
    figure.legend(
        handles=patches,
        loc="lower left",
        bbox_to_anchor=(0.005, 0.005),
        ncols=len(entries),
        frameon=False,
        fontsize=8.5,
        labelcolor=MUTED,
        handlelength=1,
        handleheight=1,
    )


# ------------------------------------------------------------------ far beyond a tenth


def along(result: Sensitivity) -> Any:
    """Latencies along each figure: where more of it stops helping; targets are drawn in."""
    fields = [field for field in ("ttft_ms", "tpot_ms") if getattr(result.metrics, field) is not None]
    spans = {key: max(_span(getattr(curve, field)) for field in fields) for key, curve in result.curves.items()}
    strong = sorted((key for key in spans if spans[key] > 1.02), key=lambda key: -spans[key])
    colors = dict(zip(strong, LINES, strict=False))
    figure = page(11.0, 4.4, _twice(result, fields), plan_header(result))
    panels = figure.subplots(1, len(fields), squeeze=False)[0]
    longest = max((len(short_label(result.figures[key])) for key in colors), default=0)
    beside = (0.1 + 0.066 * longest) / 11.0  # where each panel's names stand
    across = (0.985 - 0.07 - len(fields) * beside - 0.075 * (len(fields) - 1)) / len(fields)
    figure.subplots_adjust(left=0.07, right=0.985 - beside, top=0.76, bottom=0.13, wspace=(beside + 0.075) / across)
    for axes, field in zip(panels, fields, strict=True):
        _lines(axes, result, field, colors)
        axes.set_title(PANELS[field], loc="left", fontsize=10, weight="bold", pad=7)
        for target in result.targets.values():
            if target.metric == field:
                axes.axhline(target.limit, color=INK, linewidth=1.1, linestyle=(0, (4, 3)))
                axes.text(
                    axes.get_xlim()[0], target.limit, f" target {target.limit:g} ms", va="bottom", fontsize=8, color=INK
                )
    return figure


def _twice(result: Sensitivity, fields: list[str]) -> str:
    """The finding: what two times the best figure does to each latency."""
    clauses = []
    for field in fields:
        at = {key: getattr(c, field)[c.factor.index(2.0)] or math.inf for key, c in result.curves.items()}
        best = min(at, key=lambda key: at[key])
        cut = at[best] / getattr(result.metrics, field) - 1
        clauses.append(f"twice the {short_label(result.figures[best])}: {field[:4].upper()} {percent_change(cut)}")
    text = " · ".join(clauses)
    return text[0].upper() + text[1:]


def _lines(axes: Any, result: Sensitivity, field: str, colors: dict[str, str]) -> None:
    """The figures that matter, each with its name where its line ends."""
    ends = []
    for key, color in colors.items():
        curve = result.curves[key]
        if _span(getattr(curve, field)) < 1.02:
            continue
        axes.plot(curve.factor, getattr(curve, field), color=color, linewidth=2, marker="o", markersize=2.5)
        ends.append((getattr(curve, field)[-1], short_label(result.figures[key]), color))
    axes.plot(1, getattr(result.metrics, field), marker="o", color=INK, markersize=6, zorder=5)
    axes.set(xscale="log", yscale="log")
    axes.set_xticks([0.25, 0.5, 1, 2, 4, 8, 16], ["¼", "½", "1", "2", "4", "8", "16"])
    axes.minorticks_off()
    low, high = axes.get_ylim()
    ticks = [m * 10.0**e for e in range(-3, 7) for m in (1, 1.5, 2, 3, 5, 7) if low <= m * 10.0**e <= high]
    axes.set_yticks(ticks[:: max(1, len(ticks) // 7)], [seconds(t / 1e3) for t in ticks[:: max(1, len(ticks) // 7)]])
    axes.set_xlabel("factor on the current figure", fontsize=8.5)
    axes.tick_params(labelsize=8, colors=MUTED, length=2)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    gap, below = (high / low) ** 0.065, math.inf
    for value, label, color in sorted(ends, reverse=True):  # names keep clear of each other, from the top down
        below = min(value, below / gap)
        axes.text(17.5, below, label, va="center", fontsize=8.5, color=color)


def _span(values: list[float | None]) -> float:
    known = [value for value in values if value]
    return max(known) / min(known) if known else 1.0


# ------------------------------------------------------------------ models and use cases


def demands(result: Sensitivity, rows: list[ComparisonRow], title: str) -> Any:
    """Bars of FLOP/s, bandwidth and memory beside what the GPU has, one group per model or use case."""
    tall = 1.9 + 0.82 * len(rows)
    figure = page(10.0, tall, title, plan_header(result))
    axes = figure.add_axes((0.225, 0.62 / tall, 0.63, 1 - 1.55 / tall))
    factors = [f for row in rows for f in _factors(row).values() if f]
    low, high = min(0.25, *factors) / 1.4, max(2.0, *factors) * 2.6
    across = axes.get_yaxis_transform()
    for y, row in enumerate(rows):
        _demand_bars(axes, y, row, low, high)
        best = row.size.smallest if row.size else None
        platform = f"{best.gpus} × {best.gpu}\n{best.layout}" if best else "no layout\nmeets it"
        look = {"fontsize": 8.5, "color": INK if best else VERMILLION, "linespacing": 1.3}
        axes.text(1.19, y, platform, ha="right", va="center", transform=across, **look)
    axes.axvline(1, color=INK, linewidth=1.3, zorder=3)
    head = {"va": "bottom", "fontsize": 8.5}
    axes.text(1, -0.62, "this GPU", ha="center", color=INK, **head)
    axes.text(1.19, -0.62, "or: smallest platform", ha="right", color=MUTED, transform=across, **head)
    axes.set(xscale="log", xlim=(low, high), ylim=(len(rows) - 0.45, -0.55))
    axes.set_yticks(range(len(rows)), [_label(row, result) for row in rows], linespacing=1.3)
    axes.xaxis.set_major_formatter(lambda x, _: f"×{x:g}")
    axes.minorticks_off()
    axes.tick_params(axis="x", labelsize=8, colors=MUTED)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(True, axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    _key(figure, tuple((f"{DEMAND_LABELS[key]} of each GPU", color) for key, color in COLORS.items()))
    return figure


def _demand_bars(axes: Any, y: int, row: ComparisonRow, low: float, high: float) -> None:
    """Three bars from ``low`` to the factor that is needed; a grey one up to ``high`` where none is enough."""
    for number, (key, factor) in enumerate(_factors(row).items()):
        at = y + (number - 1) * 0.26
        if factor:
            label = f"{factor_text(factor)}  {_amount(row, key)}"
        else:
            label = f"none is enough: {binding_text(row.demand.binding)}"
        axes.barh(
            at,
            (factor or high) - low,
            left=low,
            height=0.24,
            zorder=2,
            linewidth=0,
            color=COLORS[key] if factor else FAINT,
            alpha=1.0 if (factor or 0) > 1 else 0.55,
        )
        text = axes.text((factor or low) * 1.04, at, label, va="center", fontsize=8, color=INK, zorder=4)
        text.set_bbox({"facecolor": "white" if factor else "none", "edgecolor": "none", "pad": 0.6})


def _factors(row: ComparisonRow) -> dict[str, float | None]:
    return {"flops": row.demand.flops, "memory_bandwidth": row.demand.memory_bandwidth, "memory": row.demand.memory}


def _amount(row: ComparisonRow, key: str) -> str:
    value = float(getattr(row.demand, f"{key}_value"))
    return size(value) if key == "memory" else si(value, "FLOP/s" if key == "flops" else "B/s")


def _label(row: ComparisonRow, result: Sensitivity) -> str:
    """A use case with its limits; a model with what is lost if nothing changes."""
    if not result.compare:
        return "\n".join(
            [row.name, *(f"{word.upper()} ≤ {seconds(value / 1e3)}" for word, value in row.limits.items())]
        )
    first = result.compare[0]
    lost = [
        f"{label} {factor_text(getattr(row, field) / getattr(first, field))} on this GPU"
        for field, label in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"))
        if getattr(first, field)
    ]
    return "\n".join([row.name, *lost])


def _compared(result: Sensitivity) -> str:
    """The finding for the model that asks for the most."""
    top = _hardest(result.compare[1:])
    flops, bandwidth, memory = map(factor_text, (top.demand.flops, top.demand.memory_bandwidth, top.demand.memory))
    factors = f"FLOP/s {flops}, bandwidth {bandwidth}, memory {memory}"
    return f"{top.name} as fast as {result.compare[0].name} needs {factors}"


def _cases(result: Sensitivity) -> str:
    top = _hardest(result.usecases)
    return f"What each use case demands of a GPU: {top.name} the most, for {binding_text(top.demand.binding)}"


def _hardest(rows: list[ComparisonRow]) -> ComparisonRow:
    return max(rows, key=lambda row: max(factor or math.inf for factor in _factors(row).values()))


# ------------------------------------------------------------------ platforms


def sizes(result: Sensitivity) -> Any:
    """Memory of the fullest GPU by number of GPUs, and what the ones that do not do lack."""
    rows = [tried for one in result.size for tried in [t for t in one.tried if t.binding != "layout"][-8:]]
    tall = 1.6 + 0.42 * len(rows)
    head = result.summary.partition(". ")[0] if result.feasible else "No platform meets the target"
    figure = page(10.0, tall, head, plan_header(result))
    axes = figure.add_axes((0.2, 0.45 / tall, 0.77, 1 - 1.35 / tall))
    for y, tried in enumerate(rows):
        share = tried.memory_share if tried.memory_share is not None else 1 + (tried.short or 0.0)
        axes.barh(
            y, share, height=0.62, color=GREEN if tried.works else VERMILLION if share > 1 else FAINT, linewidth=0
        )
        label = "works" if tried.works else tried.reason.partition(" usable")[0]
        axes.text(max(share, 1.0) + 0.02, y, label, va="center", fontsize=8, color=INK, parse_math=False)
    axes.axvline(1, color=INK, linewidth=1.3)
    axes.set_xlim(0, max(3.2, 1.6 * max(t.memory_share or 1 + (t.short or 0) for t in rows)))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [f"{t.gpus} × {t.gpu}  {t.layout}" for t in rows])
    axes.xaxis.set_major_formatter(lambda x, _: f"{x * 100:.0f}%")
    axes.set_xlabel("share of usable memory, fullest GPU", fontsize=8.5)
    axes.tick_params(axis="x", labelsize=8, colors=MUTED)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return figure


PICTURES: dict[str, tuple[str, Callable[[Sensitivity], Any]]] = {  # name -> the field of the answer, how it is drawn
    "tornado": ("figures", tornado),
    "curves": ("curves", along),
    "size": ("size", sizes),
    "compare": ("compare", lambda result: demands(result, result.compare[1:], _compared(result))),
    "usecases": ("usecases", lambda result: demands(result, result.usecases, _cases(result))),
}
