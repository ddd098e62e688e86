"""The roofline: arithmetic intensity against FLOP/s, and all of the time. Laid out once, for the picture and the page.

roofline(report)                                  # a figure of matplotlib
roofline_chart(report)["phases"]["decode"]        # the same for a page: dots, time, and places of the names
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from ...base.units import seconds, si
from ...costs.precision import QUANTISED, peak_format
from ...inference.report import OpRow, Phase, Report
from ...specs.catalog import precision
from ...specs.structs import Hardware
from ..text.terminal import header
from .canvas import BOUNDS, POINTS, WAITS, Point, clean, page, share_text
from .labels import FONT_SIZE, LEADER, LINE_HEIGHT, Frame, Name, Room, circle_box, label_along, label_width, nearest
from .palette import GRID, INK, MUTED, tint

# Pixels of the page's field: a phone's, and those of two beside each other on small and on large screens.
PAGE_SIZES = ((280.0, 300.0), (350.0, 340.0), (440.0, 380.0))
_BESIDE = 4  # operators without dots that a strip names


def roofs(report: Report) -> dict[str, float]:
    """The compute roofs that the plan's products run under: format -> FLOP/s, fastest first."""
    device = msgspec.convert(report.device, Hardware)
    dtype, chosen = report.model.dtype, report.model.computed_as
    kinds = {op.kind for phase in report.phases.values() for op in phase.ops}
    roles = [r for r in QUANTISED if r in chosen and (r != "experts" or "moe" in kinds)]
    formats = {peak_format(device, precision(word), dtype) for word in (dtype, *(chosen[r] for r in roles))}
    return dict(sorted(((w, device.flops[w]) for w in formats), key=lambda item: -item[1]))


def roofline_chart(report: Report, sizes: Sequence[tuple[float, float]] = PAGE_SIZES) -> dict[str, Any]:
    """All that a roofline shows, for whoever draws it: ``roofline_chart(report)["phases"]["decode"]["time"]``

    Names are placed for fields of some ``sizes`` in pixels, lower left first; places are parts of the field's sides.
    """
    tops, bandwidth = roofs(report), float(report.device["memory_bandwidth"])
    points = {
        name: [i for i, op in enumerate(phase.ops) if op.flops > 0 and op.bytes > 0 and op.seconds > 0]
        for name, phase in report.phases.items()
    }
    every = [report.phases[name].ops[i] for name, dots in points.items() for i in dots]
    every = [op for op in every if op.share > 1e-4]
    peak = max(tops.values())
    xs = [op.intensity for op in every] + [peak / bandwidth]
    ys = [op.flops / op.seconds for op in every]
    chart: dict[str, Any] = {
        "x": (max(min(xs) / 2.5, 1e-3), max(xs) * 10),
        "y": (max(min([*ys, peak]) / 3, peak * 1e-9), peak * 3.5),
        "bandwidth": bandwidth,
        "roofs": [{"name": ", ".join(w for w in tops if tops[w] == top), "flops": top} for top in set(tops.values())],
        "reached": _reached(report),
    }
    chart["roofs"].sort(key=lambda roof: -roof["flops"])
    chart["phases"] = {
        name: {
            "dots": [{"op": i, "radius": _radius(phase.ops[i].share)} for i in points[name]],
            "time": _time(phase, set(points[name])),
            "legend": time_legend(_time(phase, set(points[name]))),
            "fields": [_field(chart, phase.ops, points[name], Frame(chart["x"], chart["y"], *size)) for size in sizes],
        }
        for name, phase in report.phases.items()
    }
    return chart


def _radius(share: float) -> float:
    """Pixels of a dot's radius: its area is its share of the time, and one without any is still seen."""
    return math.sqrt(8.6 + 553 * share)


def _reached(report: Report) -> dict[str, Any]:
    """The best rates among operators whose efficiency was measured, or fitted to measurements."""
    every = [op for phase in report.phases.values() for op in phase.ops if op.seconds > 0 and op.origin != "assumed"]
    rates = {
        "bandwidth": [(op.bytes / op.seconds, op) for op in every if op.bound == "memory" and op.bytes > 0],
        "flops": [(op.flops / op.seconds, op) for op in every if op.bound == "compute" and op.flops > 0],
    }
    best = {key: max(pairs, key=lambda pair: pair[0], default=None) for key, pairs in rates.items()}
    return {
        key: pair and {"rate": pair[0], "name": pair[1].name, "origin": pair[1].origin} for key, pair in best.items()
    }


def _time(phase: Phase, dots: set[int]) -> list[dict[str, Any]]:
    """All of a phase's time: what has dots by what limits it, then what has none by name; each largest first."""
    parts: dict[tuple[bool, str], dict[str, Any]] = {}
    for i, op in enumerate(phase.ops):
        name = WAITS.get(op.bound, f"{op.bound}-bound") if i in dots else op.name
        part = parts.setdefault(
            (i in dots, name), {"name": name, "bound": op.bound, "dots": i in dots, "seconds": 0.0, "share": 0.0}
        )
        part["seconds"] += op.seconds
        part["share"] += op.share
    return sorted((p for p in parts.values() if p["seconds"] > 0), key=lambda p: (not p["dots"], -p["share"]))


def _field(chart: dict[str, Any], ops: list[OpRow], points: list[int], frame: Frame) -> dict[str, Any]:
    """Places of all names in a field of some size, as parts of its width and height."""
    (x0, x1), (y0, _), bandwidth, roofs = frame.xs, frame.ys, chart["bandwidth"], chart["roofs"]
    middles = {i: frame.at(ops[i].intensity, _rate(ops[i])) for i in points}
    boxes = [circle_box(*middle, _radius(ops[i].share)) for i, middle in middles.items()]
    room = Room(frame.width, frame.height)
    start, peak = max(x0, y0 / bandwidth), roofs[0]["flops"]
    slope = (frame.at(start, start * bandwidth), frame.at(peak / bandwidth, peak))
    room.take_line(slope)
    levels = [frame.at(x1, roof["flops"])[1] for roof in roofs]
    for roof, level in zip(roofs, levels, strict=True):
        room.take((frame.at(roof["flops"] / bandwidth, roof["flops"])[0], level - 2, frame.width, level + 2))
    for box in boxes:
        room.take(box)
    sides = []
    for roof, level in zip(roofs, levels, strict=True):
        left, right = frame.width - label_width(roof_label(roof)) - 4, frame.width - 4
        both = {side: (left, level + side - 7, right, level + side + 7) for side in (10.0, -10.0)}
        side = next((side for side, box in both.items() if room.is_free(box)), 10.0)
        room.take(both[side])
        sides.append({"side": side, "y": level / frame.height})
    part, along = label_along(f"memory {si(bandwidth, 'B/s')}", slope, boxes)
    room.take_text(along)
    names = []
    for text, i in _names(ops, middles, round(frame.width / 32)):
        place = room.place(Name(text, *middles[i], _radius(ops[i].share)))
        if place is not None:
            x, y = (place[0] + place[2]) / 2 / frame.width, (place[1] + place[3]) / 2 / frame.height
            names.append({"text": text, "op": i, "x": x, "y": y, "width": place[2] - place[0]})
    return {
        "width": frame.width,
        "height": frame.height,
        "roofs": sides,
        "memory": part,
        "dashes": 1 - (max(label_width(roof_label(roof)) for roof in roofs) + 10) / frame.width,
        "names": names,
    }


def _rate(op: OpRow) -> float:
    return op.flops / op.seconds


def roof_label(roof: dict[str, Any]) -> str:
    """``roof_label({"name": "bf16", "flops": 989e12})  # 'bf16 989 TFLOP/s'``"""
    return f"{roof['name']} {si(roof['flops'], 'FLOP/s')}"


def _names(ops: list[OpRow], middles: dict[int, Point], most: int) -> list[tuple[str, int]]:
    """Names of dots of half a percent and more, each once, largest first; small ones in one place share a label."""
    labels: list[tuple[list[str], int, float]] = []
    for i in sorted(middles, key=lambda i: -ops[i].share):
        op, (x, y) = ops[i], middles[i]
        if op.share < 0.005 or any(op.name in others for others, _, _ in labels):
            continue
        for k, (others, j, share) in enumerate(labels):
            near = abs(middles[j][0] - x) + abs(middles[j][1] - y) < 5
            if near and share < 0.04 and len(", ".join(others)) < 20:
                labels[k] = ([*others, op.name], j, share + op.share)
                break
        else:
            labels.append(([op.name], i, op.share))
    return [(clean(f"{', '.join(others)} {share_text(share)}"), i) for others, i, share in labels[:most]]


def roofline(report: Report) -> Any:
    """Arithmetic intensity against achieved FLOP/s, a panel per phase; the area of a dot is its share of the time."""
    number = len(report.phases)
    wide, high = (6.6 if number < 3 else 5.4) * number + 0.6, 7.3
    figure = page(wide, high, "Roofline · the area of a dot is its share of the phase's time", header(report))
    panels = figure.subplots(1, number, sharey=True, sharex=True, squeeze=False)[0]
    figure.subplots_adjust(left=0.78 / wide, right=0.985, top=1 - 1.02 / high, bottom=1.62 / high, wspace=0.05)
    extent = panels[0].get_position()
    chart = roofline_chart(report, [(extent.width * wide * 100, extent.height * high * 100)])
    panels[0].set(xscale="log", yscale="log", xlim=chart["x"], ylim=chart["y"])
    panels[0].set_ylabel("achieved FLOP/s", fontsize=9)
    for axes, (name, drawn) in zip(panels, chart["phases"].items(), strict=True):
        phase, field = report.phases[name], drawn["fields"][0]
        _roofs(axes, chart, field)
        for dot in sorted(drawn["dots"], key=lambda dot: -dot["radius"]):
            op = phase.ops[dot["op"]]
            axes.scatter(
                op.intensity,
                _rate(op),
                s=math.pi * (dot["radius"] * POINTS) ** 2,
                color=tint(BOUNDS.get(op.bound, MUTED), 0.75),
                edgecolor="white",
                linewidth=0.7,
                zorder=3,
            )
        _write_names(axes, phase.ops, field, Frame(chart["x"], chart["y"], field["width"], field["height"]))
        axes.set_title(f"{name.capitalize()} · {seconds(phase.seconds)}", loc="left", fontsize=10.5, weight="bold")
        axes.set_xlabel("arithmetic intensity (FLOP/byte)", fontsize=9)
        _strip(axes, drawn["time"], field)
    return figure


def _roofs(axes: Any, chart: dict[str, Any], field: dict[str, Any]) -> None:
    """Grid, roofs with their labels and, dashed, the best that kernels reach."""
    (x0, x1), bandwidth, peak, best = chart["x"], chart["bandwidth"], chart["roofs"][0]["flops"], chart["reached"]
    axes.grid(True, which="major", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.minorticks_off()
    axes.tick_params(labelsize=8.5, length=3, colors=MUTED)
    start = max(x0, chart["y"][0] / bandwidth)
    axes.plot([start, peak / bandwidth], [start * bandwidth, peak], color=INK, linewidth=1.4)
    font = {"fontsize": FONT_SIZE * POINTS, "color": INK}
    for roof, place in zip(chart["roofs"], field["roofs"], strict=True):
        axes.plot([roof["flops"] / bandwidth, x1], [roof["flops"]] * 2, color=INK, linewidth=1.4)
        y = place["y"] + place["side"] / field["height"]
        right = 1 - 4 / field["width"]
        axes.text(right, y, roof_label(roof), ha="right", va="center", transform=axes.transAxes, **font)
    frame = Frame(chart["x"], chart["y"], field["width"], field["height"])
    (ax, ay), (bx, by) = frame.at(start, start * bandwidth), frame.at(peak / bandwidth, peak)
    length, part = math.dist((ax, ay), (bx, by)), field["memory"]
    dx, dy = (bx - ax) / length, (by - ay) / length
    spot = (ax + (bx - ax) * part - 3 * dy) / frame.width, (ay + (by - ay) * part + 3 * dx) / frame.height
    along = {"rotation": math.degrees(math.atan2(dy, dx)), "rotation_mode": "anchor", "va": "bottom"}
    axes.text(*spot, f"memory {si(bandwidth, 'B/s')}", transform=axes.transAxes, **along, **font)
    dashed = {"color": MUTED, "linewidth": 0.9, "linestyle": (0, (5, 4)), "zorder": 1.5}
    rate = best["bandwidth"]["rate"] if best["bandwidth"] else bandwidth
    top = best["flops"]["rate"] if best["flops"] else peak
    end = x0 * (x1 / x0) ** field["dashes"]
    if best["bandwidth"]:
        axes.plot([x0, top / rate], [x0 * rate, top], **dashed)
    if best["flops"] and top / rate < end:
        axes.plot([top / rate, end], [top, top], **dashed)


def _write_names(axes: Any, ops: list[OpRow], field: dict[str, Any], frame: Frame) -> None:
    for name in field["names"]:
        x, y, op = name["x"] * frame.width, name["y"] * frame.height, ops[name["op"]]
        axes.text(
            name["x"],
            name["y"],
            name["text"],
            fontsize=FONT_SIZE * POINTS,
            color=INK,
            ha="center",
            va="center",
            zorder=5,
            transform=axes.transAxes,
            parse_math=False,
        )
        dot = frame.at(op.intensity, _rate(op))
        half = name["width"] / 2
        end = nearest(*dot, (x - half, y - LINE_HEIGHT / 2, x + half, y + LINE_HEIGHT / 2))
        if math.dist(dot, end) >= _radius(op.share) + LEADER:
            axes.plot(
                [dot[0] / frame.width, end[0] / frame.width],
                [dot[1] / frame.height, end[1] / frame.height],
                color=MUTED,
                linewidth=0.6,
                zorder=3.5,
                transform=axes.transAxes,
            )


def _strip(axes: Any, time: list[dict[str, Any]], field: dict[str, Any]) -> None:
    """Below the field, all of the time: what has dots, and what has no arithmetic, by name."""
    from matplotlib.patches import Rectangle

    high, x = field["height"], 0.0
    for part in time:
        color = BOUNDS.get(part["bound"], MUTED)
        axes.add_patch(
            Rectangle(
                (x, -70 / high),
                part["share"],
                14 / high,
                facecolor=tint(color, 0.75 if part["dots"] else 1.0),
                edgecolor="white",
                linewidth=0.8,
                transform=axes.transAxes,
                clip_on=False,
            )
        )
        x += part["share"]
    left, low, free = 0.0, 88.0, field["width"]
    spot = {"transform": axes.transAxes, "va": "center", "fontsize": FONT_SIZE * POINTS}
    legend = time_legend(time)
    for k, (text, bound) in enumerate(legend):
        wide, color = label_width(text) + (26 if bound else 8), BOUNDS.get(bound, MUTED)
        needed = wide if bound else wide + label_width(legend[k + 1][0]) + 26  # what they are, and the first of them
        if left + needed > free and left:
            left, low = 0.0, low + LINE_HEIGHT + 2
        if bound:
            axes.text(left / free, -low / high, "■", color=color, **spot)
        axes.text((left + (12 if bound else 0)) / free, -low / high, text, color=MUTED, parse_math=False, **spot)
        left += wide


def time_legend(time: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Texts of a strip, each with what limits it: what has dots, the largest of what has none, the others together."""
    dots, beside = [p for p in time if p["dots"]], [p for p in time if not p["dots"]]
    kept = [p for p in beside[:_BESIDE] if p["share"] >= 0.0005]
    rest = beside[len(kept) :]
    kept, rest = ([*kept, *rest], []) if len(rest) == 1 else (kept, rest)
    texts = {True: "dots:", False: "no arithmetic:"}
    shown = [entry for part in (dots, kept) if part for entry in ((texts[part is dots], ""), *map(_entry, part))]
    return [*shown, (f"{len(rest)} more {share_text(sum(p['share'] for p in rest))}", "other")] if rest else shown


def _entry(part: dict[str, Any]) -> tuple[str, str]:
    name = part["name"].replace("_", " ") if part["bound"] in WAITS else part["name"]  # a row of ours
    return clean(f"{name} {share_text(part['share'])}"), part["bound"]
