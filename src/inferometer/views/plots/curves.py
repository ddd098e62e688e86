"""A sweep as pictures: waits, throughput and memory along every axis of numbers, and throughput against interactivity.

write_curves(sweep, "out")      # [out/batch_size.png, out/input_len.png, out/front.png]

What cannot be used is drawn in grey, and begins where the memory (or another limit) ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...base.pareto import pareto_front
from ...base.units import ceil_div, si
from ...sweep.grid import INNER_AXES
from ...sweep.points import axis_cell
from ...sweep.sweep import WORKLOAD_AXES, Sweep, spread
from .. import files
from ..text.sweeps import short
from .canvas import brief, logarithmic, page, picture, style
from .palette import BLUE, BROWN, FAINT, GREEN, GRID, INK, MUTED, ORANGE, PURPLE, SILVER, SKY, VERMILLION

_END = "feasibility limit"
COLORS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BROWN, INK)
PANELS = {
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "output_throughput_per_gpu": "output tokens/s per GPU",
    "memory": "share of usable memory",
}
UNITS = {
    "batch_size": "batch size (sequences)",
    "input_len": "input length (tokens)",
    "output_len": "output length (tokens)",
    "prefix_len": "prefix length (tokens)",
}


class SweepLine(NamedTuple):
    """Points that are joined: their name, and where in the sweep's cubes they lie."""

    name: str
    at: tuple[Any, ...]


class Selection(NamedTuple):
    """What a picture shows of a sweep: its lines, and by axis a phrase for what it leaves out."""

    lines: list[SweepLine]
    held: dict[str, str]


def number_axes(sweep: Sweep) -> list[str]:
    """The axes of numbers that have several."""
    return [name for name, values in sweep.axes.items() if len(values) > 1 and sweep.kinds[name] in ("int", "float")]


def write_curves(sweep: Sweep, folder: str | Path) -> list[Path]:
    """One picture for every axis of numbers that has several, and the front if anything varies but the workload."""
    target = files.folder(folder)
    with style():
        made = [files.write(target / f"{name}.png", picture(curves(sweep, name))) for name in number_axes(sweep)]
        if any(len(values) > 1 for name, values in sweep.axes.items() if name not in WORKLOAD_AXES):
            made.append(files.write(target / "front.png", picture(front(sweep))))
    return made


# ------------------------------------------------------------------ which lines


def selected_lines(sweep: Sweep, along: str, hold: tuple[str, ...] = ()) -> Selection:
    """Up to eight lines along an axis: names first, then layouts, then the workload; the rest is held and named."""
    others = [name for name, values in sweep.axes.items() if name != along and len(values) > 1]
    others.sort(key=lambda name: (name in INNER_AXES[1:], name == "batch_size", sweep.kinds[name] in ("int", "float")))
    picks: dict[str, list[int]] = {}
    notes: dict[str, str] = {}
    room = len(COLORS)
    for name in others:
        values = sweep.axes[name]
        few = _some(sweep, name, room) if name not in hold and (room > 2 or len(values) <= room) else []
        picks[name] = few or [_held(sweep, name)]
        if few and len(few) < len(values):
            notes[name] = f"{len(few)} of {len(values):,} {short(name)}"
        elif not few:
            notes[name] = _phrase(name, values[picks[name][0]], sweep.kinds[name])
        room //= len(picks[name])
    return Selection(list(_lines(sweep, along, picks)), notes)


def _works(sweep: Sweep, name: str) -> np.ndarray:
    """Points that can be used with each value of an axis."""
    place, usable = list(sweep.axes).index(name), sweep.cube("feasible")
    counts: np.ndarray = usable.sum(axis=tuple(i for i in range(usable.ndim) if i != place))
    return counts


def _held(sweep: Sweep, name: str) -> int:
    """The value of an axis that stands for all: of a workload the middle one, else the one with most that works."""
    works = _works(sweep, name)
    middle = (len(works) - 1) // 2
    return middle if name in INNER_AXES and works[middle] else int(np.argmax(works))


def _some(sweep: Sweep, name: str, room: int) -> list[int]:
    """All values of an axis; where these are too many, some of those that can be used, numbers by equal ratios."""
    values = sweep.axes[name]
    if len(values) <= room:
        return list(range(len(values)))
    able = np.flatnonzero(_works(sweep, name)).tolist() or list(range(len(values)))
    numbers = np.array([values[i] for i in able], float) if sweep.kinds[name] in ("int", "float") else np.zeros(1)
    if numbers.min() <= 0 or len(able) <= room:
        return spread(able, room)
    wanted = np.geomspace(numbers.min(), numbers.max(), room)
    return sorted({able[int(np.argmin(np.abs(numbers - value)))] for value in wanted})


def _lines(sweep: Sweep, along: str, picks: dict[str, list[int]]) -> Iterator[SweepLine]:
    axes = list(sweep.axes)
    varied = [name for name in axes if len(picks.get(name, ())) > 1]
    sizes = [len(picks[name]) for name in varied]
    for spot in np.ndindex(*sizes):
        here = {name: picks[name][at] for name, at in zip(varied, spot, strict=True)}
        here |= {name: places[0] for name, places in picks.items() if len(places) == 1}
        labels = [_phrase(name, sweep.axes[name][here[name]], sweep.kinds[name]) for name in varied]
        yield SweepLine(" · ".join(labels), tuple(slice(None) if name == along else here.get(name, 0) for name in axes))


def _phrase(name: str, value: Any, holds: str) -> str:
    if holds == "switch":
        return f"{'' if value else 'no '}{short(name)}"
    return str(axis_cell(value)) if holds == "text" else f"{short(name)} {value:,}"


def _about(sweep: Sweep, shown: Selection) -> str:
    """What all points have in common, and what the picture leaves out."""
    fixed = {name: values[0] for name, values in sweep.axes.items() if len(values) == 1}
    for name in INNER_AXES[:3]:
        values = {chunk.columns[name].flat[0] for chunk in sweep.chunks} if name not in sweep.axes else set()
        if len(values) == 1 and not np.isnan(value := values.pop()):
            fixed[name] = int(value)
    phrases = {name: _phrase(name, value, sweep.kinds[name]) for name, value in fixed.items()} | shown.held
    return " · ".join(phrases[name] for name in sweep.kinds if name in phrases)


# ------------------------------------------------------------------ along an axis


def curves(sweep: Sweep, along: str, metric: str = "") -> Any:
    """Two waits, throughput and memory along one axis, or one metric alone."""
    shown = selected_lines(sweep, along)
    x = np.array(sweep.axes[along], float)
    order = np.argsort(x)
    panels = {metric: PANELS.get(metric, metric.replace("_", " "))} if metric else PANELS
    cubes = {name: _cube(sweep, name) for name in panels}
    usable = sweep.cube("feasible")
    keyed = any(line.name or not usable[line.at].all() for line in shown.lines)
    wide, high = 11.0, 7.0
    figure = page(wide, high, _finding(sweep, along, shown), _about(sweep, shown))
    right = _right(shown.lines, wide) if keyed else 0.985
    across, up = ((right - 0.075 - 0.075) / 2, 0.335) if len(panels) > 1 else (right - 0.075, 0.76)
    for number, (name, title) in enumerate(panels.items()):
        row, column = divmod(number, 2)
        bottom = 0.5 - row * 0.425 if len(panels) > 1 else 0.075
        axes = figure.add_axes((0.07 + column * (across + 0.075), bottom, across, up))
        axes.set_title(title, fontsize=10, loc="left", weight="bold")
        _across(axes, x, ticks=True)
        _upwards(axes, name, np.concatenate([cubes[name][line.at] for line in shown.lines]))
        for line, color in zip(shown.lines, COLORS, strict=False):
            _curve(axes, x[order], cubes[name][line.at][order], usable[line.at][order], color)
        if name == "memory":
            _limit(axes)
        if row or len(panels) == 1:
            axes.set_xlabel(UNITS.get(along, along.replace("_", " ")), fontsize=9.5)
    if keyed:
        _legend(figure, shown.lines, right + 0.012, usable)
    return figure


def _cube(sweep: Sweep, name: str) -> np.ndarray:
    """A column over the axes; of memory, the share of what the engine may use."""
    if name != "memory":
        return sweep.cube(name)
    share: np.ndarray = sweep.cube("total_bytes") / sweep.cube("usable_bytes")
    return share


def _right(lines: list[SweepLine], wide: float) -> float:
    """Where the panels end, so that the legend has room."""
    return 1 - (0.42 + 0.077 * max(len(_END), *(len(line.name) for line in lines))) / wide


def _finding(sweep: Sweep, along: str, shown: Selection) -> str:
    """The title: where a GPU gives most, among what is drawn."""
    gpu, usable = sweep.cube("output_throughput_per_gpu"), sweep.cube("feasible")
    best = (-1.0, "", 0)
    for line in shown.lines:
        values = np.where(usable[line.at], gpu[line.at], np.nan)
        if not np.isnan(values).all():
            at = int(np.nanargmax(values))
            best = max(best, (float(values[at]), line.name, at))
    if best[0] < 0:
        return f"Along {short(along)}: no feasible point"
    where = " · ".join(filter(None, (best[1], f"{short(along)} {sweep.axes[along][best[2]]:,}")))
    return f"Most output per GPU: {best[0]:,.0f} tokens/s at {where}"


def _across(axes: Any, x: np.ndarray, *, ticks: bool = False) -> None:
    """The axis of what is varied; ``ticks`` stand on its values where these are few."""
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, length=3, colors=MUTED)
    steps = np.diff(np.sort(x))
    even = len(x) > 3 and steps.max() < 1.01 * steps.min() and x.max() <= 50 * x.min()
    if not (ticks and even):
        logarithmic(axes, "x", x)
    if ticks and len(x) <= 24:
        axes.set_xticks(sorted(x.tolist())[:: ceil_div(len(x), 8)])
    axes.xaxis.set_major_formatter(lambda v, _: si(v) if v >= 1e6 else f"{v:,.6g}")


def _upwards(axes: Any, name: str, values: np.ndarray) -> None:
    """The axis of a figure."""
    logarithmic(axes, "y", values)
    if name.endswith("_ms"):
        axes.yaxis.set_major_formatter(lambda v, _: brief(v / 1e3) if v > 0 else "0")
    elif name == "memory":
        axes.yaxis.set_major_formatter(lambda v, _: f"{v * 100:,g}%")
    else:
        axes.yaxis.set_major_formatter(lambda v, _: f"{v:,g}" if v < 1e4 else si(v))


def _curve(axes: Any, x: np.ndarray, y: np.ndarray, usable: np.ndarray, color: str) -> None:
    """What works in colour; what does not in grey, from the last point that does, which is marked."""
    beside = np.concatenate([~usable[1:], [False]]) | np.concatenate([[False], ~usable[:-1]])
    axes.plot(x, np.where(~usable | beside, y, np.nan), color=SILVER, linewidth=1.1, linestyle=(0, (2, 2)), zorder=1.5)
    axes.plot(
        x,
        np.where(usable, y, np.nan),
        color=color,
        linewidth=1.7,
        marker="o" if len(x) <= 40 else "",
        markersize=3,
        zorder=3,
    )
    ends = usable & beside
    axes.plot(x[ends], y[ends], linestyle="", marker="|", markersize=13, markeredgewidth=2.2, color=color, zorder=4)


def _limit(axes: Any) -> None:
    """The memory that there is, and what lies beyond."""
    low, high = axes.get_ylim()
    high = max(high, 1.3)
    axes.axhspan(1, high, facecolor="none", edgecolor=FAINT, hatch="////", linewidth=0, zorder=0.5)
    axes.axhline(1, color=INK, linewidth=1.1, zorder=2)
    axes.text(
        0.012,
        1,
        "memory is full",
        transform=axes.get_yaxis_transform(),
        va="bottom",
        fontsize=8.5,
        color=INK,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.85},
    )
    axes.set_ylim(low, high)


def _legend(figure: Any, lines: list[SweepLine], left: float, usable: np.ndarray) -> None:
    from matplotlib.lines import Line2D

    entries = [
        Line2D([], [], color=color, linewidth=2, label=line.name)
        for line, color in zip(lines, COLORS, strict=False)
        if line.name and usable[line.at].any()
    ]
    lost = [line.name for line in lines if line.name and not usable[line.at].any()]
    entries += [Line2D([], [], color=SILVER, linewidth=1.3, linestyle=(0, (2, 2)), label=name) for name in lost]
    if not all(usable[line.at].all() for line in lines):
        entries.append(Line2D([], [], linestyle="", marker="|", markersize=10, color=MUTED, label=_END))
        entries.append(Line2D([], [], color=SILVER, linewidth=1.3, linestyle=(0, (2, 2)), label="infeasible"))
    figure.legend(
        handles=entries,
        loc="upper left",
        bbox_to_anchor=(left, 0.86),
        frameon=False,
        fontsize=8.8,
        labelcolor=INK,
        handlelength=1.5,
        borderaxespad=0,
    )


# ------------------------------------------------------------------ throughput against interactivity


def front(sweep: Sweep) -> Any:
    """Tokens/s of a GPU over tokens/s of a user, of one workload; the points that no other beats in both are joined."""
    along = "batch_size" if len(sweep.axes.get("batch_size", ())) > 1 else _most_values(sweep)
    shown = selected_lines(sweep, along, WORKLOAD_AXES[1:])  # models are compared, workloads are not
    user, gpu = sweep.cube("output_throughput_per_user"), sweep.cube("output_throughput_per_gpu")
    usable = sweep.cube("feasible")
    keyed = any(line.name or not usable[line.at].all() for line in shown.lines)
    wide, high = 9.6, 5.6
    right = _right(shown.lines, wide) if keyed else 0.985
    x = np.concatenate([user[line.at] for line in shown.lines])
    y = np.concatenate([gpu[line.at] for line in shown.lines])
    works = np.concatenate([usable[line.at] for line in shown.lines]) & np.isfinite(x)
    one = len(sweep.axes["model"]) == 1
    best = np.flatnonzero(works)[pareto_front(x[works], y[works])] if one and works.any() else np.array([], int)
    figure = page(wide, high, _trade(sweep, x, y, best), _about(sweep, shown))
    axes = figure.add_axes((0.085, 0.105, right - 0.085, 0.72))
    _across(axes, x)
    _upwards(axes, "gpu", y)
    axes.set_xlabel("output tokens/s per user", fontsize=9.5)
    axes.set_ylabel("output tokens/s per GPU", fontsize=9.5)
    for line, color in zip(shown.lines, COLORS, strict=False):
        _curve(axes, user[line.at], gpu[line.at], usable[line.at], color)
    axes.plot(x[best], y[best], color=INK, linewidth=5, alpha=0.16, zorder=1, solid_capstyle="round")
    values = sweep.axes[along]
    phrases = [_phrase(along, value, sweep.kinds[along]) for value in values]
    _marks(axes, x, y, best, [(line.name, phrase) for line in shown.lines for phrase in phrases])
    if keyed:
        _legend(figure, shown.lines, right + 0.014, usable)
    return figure


def _most_values(sweep: Sweep) -> str:
    """The axis that is not part of the workload and has most values."""
    return max((name for name in sweep.axes if name not in WORKLOAD_AXES), key=lambda name: len(sweep.axes[name]))


def _marks(axes: Any, x: np.ndarray, y: np.ndarray, best: np.ndarray, names: list[tuple[str, str]]) -> None:
    """Names beside points of the front in their line's colour, as many as do not cover each other.

    The first of a line says its name, too.
    """
    places: list[tuple[float, float, float]] = []
    axes.set_xlim(axes.get_xlim()), axes.set_ylim(axes.get_ylim())  # as they will be drawn
    colors = dict(zip(dict.fromkeys(line for line, _ in names), COLORS, strict=False))
    last = ""
    for at in best.tolist():
        line, phrase = names[at]
        text = f"{line} · {phrase}" if line and line != last else phrase
        px, py = axes.transData.transform((x[at], y[at]))
        if all(px - a > wide or abs(py - b) > 14 for a, b, wide in places if px >= a) and all(
            a - px > 5.2 * len(text) or abs(py - b) > 14 for a, b, _ in places if px < a
        ):
            places.append((px, py, 5.2 * len(text)))
            last = line
            color = colors[line] if line else MUTED
            axes.annotate(text, (x[at], y[at]), xytext=(6, 6), textcoords="offset points", fontsize=8, color=color)


def _trade(sweep: Sweep, x: np.ndarray, y: np.ndarray, best: np.ndarray) -> str:
    if len(sweep.axes["model"]) > 1:
        return f"Throughput against interactivity of {len(sweep.axes['model'])} models"
    if not len(best):
        return "Throughput against interactivity: no feasible point"
    fast, full = best[0], best[-1]
    if fast == full:
        return f"One plan beats all: {x[fast]:,.0f} tokens/s per user, {y[fast]:,.0f} per GPU"
    return (
        f"From {x[fast]:,.0f} tokens/s per user at {y[fast]:,.0f} per GPU, "
        f"to {x[full]:,.0f} per user at {y[full]:,.0f} per GPU"
    )
