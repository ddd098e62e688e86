"""A report as pictures: where the parameters, FLOPs, bytes and seconds are, the roofline, the memory, the structure.

report, model = …
write_plots(report, "out", model)     # [out/distribution_prefill.png, …, out/structure_decode.svg]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...base.errors import BadValue
from ...base.units import count, seconds, si, size
from ...costs.parallelism import pipeline_stages
from ...costs.precision import QUANTISED, peak_format
from ...inference.memory import parameters_by_op
from ...inference.report import Memory, OpRow, Phase, Report
from ...network.adapters import with_lora
from ...network.graph import Model
from ...specs.catalog import precision
from ...specs.structs import Hardware, Lora, Plan
from .. import files
from ..text.terminal import header, kv_per_token
from .canvas import BOUNDS, Point, bounds, clean, page, picture, style
from .palette import BLUE, FAINT, GREEN, GRID, INK, MUTED, ORANGE, OVERHEAD, SKY, SLATE, VERMILLION, tint
from .structure import structure

FORMATS = ("png", "svg", "pdf")
_ROWS = 16  # bars of a distribution, before the rest is summed up
_MEMORY = (("weights", BLUE), ("kv_cache", ORANGE), ("activation", SKY), ("overhead", OVERHEAD))
_MEMORY_LABELS = {"weights": "weights", "kv_cache": "KV cache", "activation": "activations", "overhead": "overhead"}
_LABEL_ANGLES = (0, 180, 90, 270, 35, 145, 325, 215)
_LABEL_DISTANCES = (0.0, 10.0, 22.0, 36.0, 52.0, 70.0)  # pixels away from the dot's rim, at 100 dpi

Rect = tuple[float, float, float, float]


def write_plots(
    report: Report, folder: str | Path, model: Model | None = None, fmt: tuple[str, ...] = ("png",)
) -> list[Path]:
    """Write every picture of a report; without its ``model`` those that need the graph (parameters, structure) lack."""
    for word in fmt:
        if word not in FORMATS:
            raise BadValue(f"plots are written as {', '.join(FORMATS)}, not {word!r}")
    target = files.folder(folder)
    if model is not None and report.plan.get("lora"):
        model = with_lora(model, msgspec.convert(report.plan["lora"], Lora))
    made: list[Path] = []

    def save(name: str, figure: Any, kinds: tuple[str, ...] = fmt) -> None:
        made.extend(files.write(target / f"{name}.{kind}", picture(figure, kind)) for kind in kinds)

    with style():
        for phase in report.phases:
            params = parameters_on_gpu(report, model, phase) if model is not None else None
            save(f"distribution_{phase}", distribution(report, phase, params))
        if report.phases:
            save("roofline", roofline(report))
        save("memory", memory(report))
        for phase in report.phases if model is not None else ():
            assert model is not None
            scene = structure(report, model, phase)
            made.append(files.write(target / f"structure_{phase}.svg", scene.svg()))
            save(f"structure_{phase}", scene.figure(), tuple(f for f in fmt if f != "svg"))
    return made


def _figure(width: float, height: float, report: Report, title: str) -> Any:
    """A page with its title: what it shows, and of which plan."""
    return page(width, height, title, header(report))


def _legend(axes: Any, entries: list[tuple[str, str]], **where: Any) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=color, label=word) for word, color in entries]
    axes.legend(handles=patches, frameon=False, fontsize=8.5, handlelength=1, handleheight=1, labelcolor=MUTED, **where)


# ------------------------------------------------------------------ distributions


def parameters_on_gpu(report: Report, model: Model, phase: str) -> dict[str, float]:
    """Parameters by operator that the GPU keeps whose work a phase shows: one of the slowest pipeline stage."""
    plan = msgspec.convert({name: report.plan[name] for name in Plan.__struct_fields__}, Plan)
    names = {op.block for op in report.phases[phase].ops}
    stages = pipeline_stages(model, plan.pipeline_parallel_size)
    return parameters_by_op(max(stages, key=lambda stage: sum(block.name in names for block in stage.blocks)), plan)


class Bar(NamedTuple):
    """One row of the distribution: the totals of all operators of a name."""

    name: str
    params: float
    flops: float
    traffic: tuple[float, float, float]  # weights, activations, cache
    time: dict[str, float]  # bound -> seconds

    @property
    def values(self) -> tuple[float, float, float, float]:
        """Parameters, FLOPs, bytes, seconds."""
        return self.params, self.flops, sum(self.traffic), sum(self.time.values())


def bars(phase: Phase, params: dict[str, float] | None) -> list[Bar]:
    """Operators by name, slowest first; those that are nowhere above 0.5% are one row at the end."""
    rows: dict[str, list[OpRow]] = {}
    for op in phase.ops:
        rows.setdefault(op.name, []).append(op)
    stored = params or {}
    every = [_bar(name, rows.get(name, []), stored.get(name, 0.0)) for name in dict.fromkeys([*rows, *stored])]
    every.sort(key=lambda bar: -bar.values[3])
    total = [sum(bar.values[i] for bar in every) for i in range(4)]
    large = [b for b in every if b.values[3] > 0 and any(v > 0.005 * t for v, t in zip(b.values, total, strict=True))]
    kept = large[:_ROWS]
    rest = [b for b in every if b not in kept and any(b.values)]
    if len(rest) == 1 and rest[0].values[3] > 0:
        kept, rest = [*kept, *rest], []
    if rest:
        ops = [op for bar in rest for op in rows.get(bar.name, [])]
        kept.append(
            _bar(
                f"{len(rest)} others" if len(rest) > 1 else f"{rest[0].name} (not run)",
                ops,
                sum(b.params for b in rest),
            )
        )
    return kept


def _bar(name: str, ops: list[OpRow], params: float) -> Bar:
    time: dict[str, float] = {}
    for op in ops:
        time[op.bound] = time.get(op.bound, 0.0) + op.seconds
    traffic = (
        sum(op.load_weight for op in ops),
        sum(op.load_act + op.store_act for op in ops),
        sum(op.load_kv_cache + op.store_kv_cache for op in ops),
    )
    return Bar(name, params, sum(op.flops for op in ops), traffic, time)


def distribution(report: Report, phase: str, params: dict[str, float] | None = None) -> Any:
    """Shares of each operator in parameters, FLOPs, bytes and seconds of one GPU, slowest operator on top."""
    rows = bars(report.phases[phase], params)
    kinds: list[tuple[str, Callable[[float], str], Callable[[Bar], list[tuple[float, str]]]]] = [
        ("Latency", seconds, lambda b: [(took, BOUNDS.get(k, MUTED)) for k, took in b.time.items()]),
        ("Memory traffic", size, lambda b: list(zip(b.traffic, (BLUE, SKY, ORANGE), strict=True))),
        ("FLOPs", lambda v: si(v, "FLOP"), lambda b: [(b.flops, SLATE)]),
        ("Parameters", count, lambda b: [(b.params, SLATE)]),
    ]
    if params is None:
        kinds.pop()
    height = 1.75 + 0.29 * len(rows)
    of = ", on one GPU" if report.plan["gpus"] > 1 else ""
    figure = _figure(3.1 * len(kinds) + 1.3, height, report, f"{phase.capitalize()}: where it goes{of}")
    panels = figure.subplots(1, len(kinds), sharey=True)
    figure.subplots_adjust(
        left=1.95 / figure.get_figwidth(), right=0.985, top=1 - 1.12 / height, bottom=0.55 / height, wspace=0.1
    )
    for axes, (title, unit, pieces) in zip(panels, kinds, strict=True):
        total = sum(value for bar in rows for value, _ in pieces(bar))
        largest = max([sum(v for v, _ in pieces(bar)) for bar in rows] + [1e-300])
        for y, bar in enumerate(rows):
            x = 0.0
            for value, color in pieces(bar):
                axes.barh(y, value, left=x, height=0.68, color=color, linewidth=0)
                x += value
            if x > 0:
                axes.text(x + largest * 0.025, y, f"{_share(x / total)}  {unit(x)}", va="center", fontsize=8, color=INK)
        axes.set_title(f"{title} · {unit(total)}", loc="left", fontsize=10, weight="bold", pad=7)
        axes.set_xlim(0, largest * 1.72)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.spines["left"].set_color(FAINT)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(rows)), [clean(bar.name) for bar in rows], parse_math=False)
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    below: dict[str, Any] = {
        "loc": "upper left",
        "bbox_to_anchor": (-0.02, 0.0),
        "ncols": 2,
        "columnspacing": 1.0,
        "borderaxespad": 0.2,
    }
    _legend(panels[0], list(bounds(b for bar in rows for b in bar.time).items()), **below)
    classes = [("weights", BLUE), ("activations", SKY), ("cache", ORANGE)]
    moved = [entry for i, entry in enumerate(classes) if any(bar.traffic[i] for bar in rows)]
    _legend(panels[1], moved, **{**below, "ncols": 3})
    return figure


def _share(value: float) -> str:
    return "<0.1%" if 0 < value < 0.0005 else f"{value * 100:.1f}%"


# ------------------------------------------------------------------ roofline


def roofs(report: Report) -> dict[str, float]:
    """The compute roofs that the plan's products run under: format -> FLOP/s, fastest first."""
    device = msgspec.convert(report.device, Hardware)
    dtype, chosen = report.model.dtype, report.model.computed_as
    kinds = {op.kind for phase in report.phases.values() for op in phase.ops}
    roles = [r for r in QUANTISED if r in chosen and (r != "experts" or "moe" in kinds)]
    formats = {peak_format(device, precision(word), dtype) for word in (dtype, *(chosen[r] for r in roles))}
    return dict(sorted(((w, device.flops[w]) for w in formats), key=lambda item: -item[1]))


def roofline(report: Report) -> Any:
    """Arithmetic intensity against achieved FLOP/s, a panel per phase; the area of a dot is its share of the time."""
    tops, bandwidth = roofs(report), float(report.device["memory_bandwidth"])
    points = {
        name: [op for op in phase.ops if op.flops > 0 and op.bytes > 0 and op.seconds > 0]
        for name, phase in report.phases.items()
    }
    every = [op for ops in points.values() for op in ops if op.share > 1e-4]
    peak = max(tops.values())
    xs = [op.intensity for op in every] + [peak / bandwidth]
    ys = [op.flops / op.seconds for op in every]
    x0, x1 = max(min(xs) / 2.5, 1e-3), max(xs) * 10
    y0, y1 = max(min([*ys, peak]) / 3, peak * 1e-9), peak * 3.5
    number = len(points)
    wide = (6.6 if number < 3 else 5.4) * number + 0.6
    figure = _figure(wide, 6.6, report, "Roofline · the area of a dot is its share of the phase's time")
    panels = figure.subplots(1, number, sharey=True, sharex=True, squeeze=False)[0]
    figure.subplots_adjust(left=0.78 / wide, right=0.985, top=0.845, bottom=0.135, wspace=0.05)
    panels[0].set(xscale="log", yscale="log", xlim=(x0, x1), ylim=(y0, y1))
    panels[0].set_ylabel("achieved FLOP/s", fontsize=9)
    for axes, (name, ops) in zip(panels, points.items(), strict=True):
        _roofs(axes, tops, bandwidth, (x0, x1))
        for op in sorted(ops, key=lambda op: -op.share):
            color = tint(BOUNDS.get(op.bound, MUTED), 0.75)
            axes.scatter(
                op.intensity,
                op.flops / op.seconds,
                s=_dot_area(op.share),
                color=color,
                edgecolor="white",
                linewidth=0.7,
                zorder=3,
            )
        phase = report.phases[name]
        axes.set_title(f"{name.capitalize()} · {seconds(phase.seconds)}", loc="left", fontsize=10.5, weight="bold")
        axes.set_xlabel("arithmetic intensity (FLOP/byte)", fontsize=9)
        axes.text(
            0, -0.115, _missing(phase), transform=axes.transAxes, fontsize=8, color=MUTED, va="top", parse_math=False
        )
    _legend(panels[0], list(bounds(op.bound for op in every).items()), loc="upper left")
    figure.canvas.draw()
    for axes, ops in zip(panels, points.values(), strict=True):
        dots = [(op.intensity, op.flops / op.seconds, op.share) for op in ops]
        lines = [((x0, x0 * bandwidth), (peak / bandwidth, peak))]
        lines += [((top / bandwidth, top), (x1, top)) for top in tops.values()]
        _place_labels(figure, axes, _labelled(ops), dots, lines, f"memory {si(bandwidth, 'B/s')}")
    return figure


def _roofs(axes: Any, tops: dict[str, float], bandwidth: float, limits: tuple[float, float]) -> None:
    x0, x1 = limits
    peak = max(tops.values())
    axes.grid(True, which="major", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.minorticks_off()
    axes.tick_params(labelsize=8.5, length=3, colors=MUTED)
    axes.plot([x0, peak / bandwidth], [x0 * bandwidth, peak], color=INK, linewidth=1.4)
    for word, top in tops.items():
        axes.plot([top / bandwidth, x1], [top, top], color=INK, linewidth=1.4)
        axes.annotate(
            f"{word} {si(top, 'FLOP/s')}",
            (x1, top),
            (-4, 2.5),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=8.5,
            color=INK,
        )


def _labelled(ops: list[OpRow]) -> list[tuple[str, float, float, float]]:
    """The operators with a label, largest first: each name once, if it takes half a percent of the time."""
    labels: dict[str, tuple[str, float, float, float]] = {}
    for op in sorted(ops, key=lambda op: -op.share):
        if op.share >= 0.005:
            labels.setdefault(op.name, (clean(op.name), op.intensity, op.flops / op.seconds, op.share))
    return list(labels.values())[:14]


def _missing(phase: Phase) -> str:
    left = [op for op in phase.ops if op.seconds > 0 and not (op.flops > 0 and op.bytes > 0)]
    names = list(dict.fromkeys(op.name for op in sorted(left, key=lambda op: -op.seconds)))
    if not names:
        return ""
    shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
    return clean(f"no arithmetic, so no dot: {shown} ({_share(sum(op.share for op in left))} of the time)")


# ------------------------------------------------------------------ labels that cover neither each other nor a dot


def _dot_area(share: float) -> float:
    """A dot's area in square points: an operator without time is still seen."""
    return 14 + 900 * share


def _place_labels(
    figure: Any,
    axes: Any,
    names: list[tuple[str, float, float, float]],
    dots: list[tuple[float, float, float]],
    lines: list[tuple[Point, Point]],
    along: str,
) -> None:
    """Write the names of (name, x, y, share) around their dots; one that finds no room is left out.

    ``lines`` are kept free; ``along`` is written on the first of them, where it is farthest from any dot.
    """
    renderer, scale = figure.canvas.get_renderer(), figure.dpi / 72
    pixels, data = axes.transData.transform, axes.transData.inverted().transform
    taken: list[Rect] = []
    for x, y, share in dots:
        (px, py), r = pixels((x, y)), math.sqrt(_dot_area(share) / math.pi) * scale * 0.85
        taken.append((px - r, py - r, px + r, py + r))
    taken += _label_line(figure, axes, along, pixels(lines[0]), taken)
    for line in lines:
        start, end = pixels(line)
        taken += _beads(start, end, 2.0)
    taken += [_rectangle(text.get_window_extent(renderer)) for text in axes.texts if not text.get_rotation()]
    if axes.get_legend() is not None:
        taken.append(_rectangle(axes.get_legend().get_window_extent(renderer)))
    frame = _rectangle(axes.get_window_extent(renderer))
    written: list[Rect] = []
    for name, x, y, share in _merged_labels(names, pixels):
        px, py = pixels((x, y))
        text = axes.text(
            x, y, f"{name} {share * 100:.1f}%", fontsize=8.2, color=INK, va="center", zorder=5, parse_math=False
        )
        extent = text.get_window_extent(renderer)
        w, h = extent.width + 4, extent.height + 2
        spot = _free_place(px, py, math.sqrt(_dot_area(share) / math.pi) * scale + 2, w, h, taken, written, frame)
        if spot is None:
            text.remove()
            continue
        left, low, far = spot
        written.append((left, low, left + w, low + h))
        text.set_position(data((left + 2, low + h / 2)))
        if far >= 10:
            near = _nearest(px, py, written[-1])
            taken += _beads((px, py), near, 1.0)
            ends = data([(px, py), near])
            axes.plot(ends[:, 0], ends[:, 1], color=MUTED, linewidth=0.6, zorder=2.5)


def _label_line(figure: Any, axes: Any, label: str, line: Any, taken: list[Rect]) -> list[Rect]:
    """A label along a line, above it; returns what it covers."""
    (x0, y0), (x1, y1) = line
    length = math.hypot(x1 - x0, y1 - y0)
    dx, dy = (x1 - x0) / length, (y1 - y0) / length
    long, high = len(label) * 5.6 * figure.dpi / 100, 13 * figure.dpi / 100

    def covered(start: float) -> list[Rect]:
        a = (x0 + dx * start - dy * high * 0.6, y0 + dy * start + dx * high * 0.6)
        return _beads(a, (a[0] + dx * long, a[1] + dy * long), high / 2)

    def room(start: float) -> float:
        return min((abs(b[0] - t[0]) + abs(b[1] - t[1]) for b in covered(start) for t in taken), default=0.0)

    places = [length * f for f in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7) if length * f + long < length]
    start = max(places, key=room) if places else 0.0
    x, y = axes.transData.inverted().transform((x0 + dx * start - 3 * dy, y0 + dy * start + 3 * dx))
    axes.text(
        x,
        y,
        label,
        rotation=math.degrees(math.atan2(dy, dx)),
        rotation_mode="anchor",
        fontsize=8.5,
        color=INK,
        va="bottom",
    )
    return covered(start)


def _beads(a: Any, b: Any, r: float) -> list[Rect]:
    """Small squares that cover a line."""
    number = max(2, int(math.hypot(b[0] - a[0], b[1] - a[1]) / 5))
    spots = [(a[0] + (b[0] - a[0]) * k / number, a[1] + (b[1] - a[1]) * k / number) for k in range(number + 1)]
    return [(x - r, y - r, x + r, y + r) for x, y in spots]


def _merged_labels(names: list[tuple[str, float, float, float]], pixels: Any) -> list[tuple[str, float, float, float]]:
    """Small dots on top of each other get one label: ``norm1, norm2 2.8%``."""
    merged: list[tuple[str, float, float, float]] = []
    for name, x, y, share in names:
        here = pixels((x, y))
        for k, (other, ox, oy, more) in enumerate(merged):
            if share < 0.04 and more < 0.04 and math.dist(here, pixels((ox, oy))) < 4:
                merged[k] = (f"{other}, {name}", ox, oy, more + share)
                break
        else:
            merged.append((name, x, y, share))
    return merged


def _free_place(
    px: float, py: float, r: float, w: float, h: float, taken: list[Rect], written: list[Rect], frame: Rect
) -> tuple[float, float, float] | None:
    """The lower left corner of the first free place, and how far it is from the dot; its leader crosses no name."""
    for far in _LABEL_DISTANCES:
        for angle in _LABEL_ANGLES:
            dx, dy = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            cx, cy = px + dx * (r + far + w / 2), py + dy * (r + far + h / 2)
            box = (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2)
            inside = box[0] > frame[0] and box[2] < frame[2] and box[1] > frame[1] and box[3] < frame[3]
            if not inside or any(_overlap(box, other) for other in taken + written):
                continue
            leader = _beads((px, py), _nearest(px, py, box), 1.0) if far >= 10 else []
            if not any(_overlap(bead, name) for bead in leader for name in written):
                return box[0], box[1], far
    return None


def _nearest(px: float, py: float, box: Rect) -> Point:
    return min(max(px, box[0]), box[2]), min(max(py, box[1]), box[3])


def _overlap(a: Rect, b: Rect) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _rectangle(extent: Any) -> Rect:
    return extent.x0, extent.y0, extent.x1, extent.y1


# ------------------------------------------------------------------ memory


def memory(report: Report) -> Any:
    """Weights, KV cache, activations and the engine's own against what may be used and what is there."""
    m = report.memory
    figure = _figure(10.0, 2.7, report, f"Memory per GPU · {size(m.total_bytes)} of {size(m.usable_bytes)} usable")
    axes = figure.add_axes((0.03, 0.36, 0.94, 0.26))
    end = max(m.total_bytes, m.capacity_bytes) * 1.02
    legend = _memory_bars(axes, m, end)
    _memory_limits(axes, m, end)
    axes.set_xlim(0, end * 1.03)
    axes.set_ylim(-0.6, 0.6)
    axes.axis("off")
    _legend(axes, legend, loc="upper left", bbox_to_anchor=(-0.005, -0.04), ncols=4, columnspacing=1.6)
    note = [f"largest batch at these lengths {m.max_batch_size:,}"]
    if m.max_total_tokens:
        note.append(f"room for {m.max_total_tokens:,} tokens of KV cache ({kv_per_token(m)})")
    fits = m.total_bytes <= m.usable_bytes
    text = " · ".join(note) if fits else f"does not fit: {report.reason}"
    figure.text(0.028, 0.09, clean(text), fontsize=8.5, color=MUTED if fits else VERMILLION, parse_math=False)
    return figure


def _memory_bars(axes: Any, m: Memory, end: float) -> list[tuple[str, str]]:
    """What is stored, side by side, and what is free or too much; returns the legend."""
    inside = {"ha": "center", "va": "center", "fontsize": 8.5, "linespacing": 1.3}
    x, legend = 0.0, []
    for key, color in _MEMORY:
        value = float(getattr(m, f"{key}_bytes"))
        axes.barh(0, value, left=x, height=0.8, color=color, linewidth=0)
        if value > 0.09 * end:
            label = f"{_MEMORY_LABELS[key]}\n{size(value)}"
            axes.text(x + value / 2, 0, label, color="white" if color == BLUE else INK, **inside)
        legend.append((f"{_MEMORY_LABELS[key]} {size(value)} ({_share(value / m.total_bytes)})", color))
        x += value
    free = m.usable_bytes - x
    if m.total_bytes > m.usable_bytes:
        hatched = {"facecolor": "none", "edgecolor": "white", "hatch": "////", "linewidth": 0}
        axes.axvspan(m.usable_bytes, x, ymin=0.02, ymax=0.98, **hatched)
        return legend
    axes.barh(0, free, left=x, height=0.8, facecolor="none", edgecolor=FAINT, linewidth=1, zorder=0)
    if free > 0.12 * end:
        axes.text(x + free / 2, 0, f"free\n{size(free)}", color=MUTED, **inside)
    return legend


def _memory_limits(axes: Any, m: Memory, end: float) -> None:
    """Lines at what may be used and what is there, their labels apart from each other."""
    near = m.capacity_bytes - m.usable_bytes < 0.2 * end
    right_of = "left" if near and end > 1.2 * m.capacity_bytes else "center" if near else "right"
    usable_color = GREEN if m.total_bytes <= m.usable_bytes else VERMILLION
    for value, word, side, color in (
        (m.usable_bytes, "usable", "right" if near else "center", usable_color),
        (m.capacity_bytes, "capacity", right_of, INK),
    ):
        axes.plot([value, value], [-0.52, 0.52], color=color, linewidth=1.6)
        axes.text(value, 0.6, f"{word} {size(value)}", ha=side, va="bottom", fontsize=8.5, color=INK)
