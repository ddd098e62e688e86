"""Names beside dots that neither cover each other nor a dot: the largest first, each at the nearest free place."""

from __future__ import annotations

import math
from typing import Any

from .palette import INK, MUTED

_ANGLES = (0, 180, 90, 270, 35, 145, 325, 215)
_REACH = (0.0, 10.0, 22.0, 36.0, 52.0, 70.0)  # pixels away from the dot's rim, at 100 dpi

Point = tuple[float, float]
Rect = tuple[float, float, float, float]


def area(share: float) -> float:
    """A dot's area in square points: an operator without time is still seen."""
    return 14 + 900 * share


def place(
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
        (px, py), r = pixels((x, y)), math.sqrt(area(share) / math.pi) * scale * 0.85
        taken.append((px - r, py - r, px + r, py + r))
    taken += _written(figure, axes, along, pixels(lines[0]), taken)
    for line in lines:
        start, end = pixels(line)
        taken += _beads(start, end, 2.0)
    taken += [_box(text.get_window_extent(renderer)) for text in axes.texts if not text.get_rotation()]
    if axes.get_legend() is not None:
        taken.append(_box(axes.get_legend().get_window_extent(renderer)))
    frame = _box(axes.get_window_extent(renderer))
    written: list[Rect] = []
    for name, x, y, share in _together(names, pixels):
        px, py = pixels((x, y))
        text = axes.text(
            x, y, f"{name} {share * 100:.1f}%", fontsize=8.2, color=INK, va="center", zorder=5, parse_math=False
        )
        extent = text.get_window_extent(renderer)
        w, h = extent.width + 4, extent.height + 2
        spot = _spot(px, py, math.sqrt(area(share) / math.pi) * scale + 2, w, h, taken, written, frame)
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


def _written(figure: Any, axes: Any, words: str, line: Any, taken: list[Rect]) -> list[Rect]:
    """Words along a line, above it; returns what they cover."""
    (x0, y0), (x1, y1) = line
    length = math.hypot(x1 - x0, y1 - y0)
    dx, dy = (x1 - x0) / length, (y1 - y0) / length
    long, high = len(words) * 5.6 * figure.dpi / 100, 13 * figure.dpi / 100

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
        words,
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


def _together(names: list[tuple[str, float, float, float]], pixels: Any) -> list[tuple[str, float, float, float]]:
    """Small dots on top of each other get one label: ``norm1, norm2 2.8%``."""
    found: list[tuple[str, float, float, float]] = []
    for name, x, y, share in names:
        here = pixels((x, y))
        for k, (other, ox, oy, more) in enumerate(found):
            if share < 0.04 and more < 0.04 and math.dist(here, pixels((ox, oy))) < 4:
                found[k] = (f"{other}, {name}", ox, oy, more + share)
                break
        else:
            found.append((name, x, y, share))
    return found


def _spot(
    px: float, py: float, r: float, w: float, h: float, taken: list[Rect], written: list[Rect], frame: Rect
) -> tuple[float, float, float] | None:
    """The lower left corner of the first free place, and how far it is from the dot; its leader crosses no name."""
    for far in _REACH:
        for angle in _ANGLES:
            dx, dy = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            cx, cy = px + dx * (r + far + w / 2), py + dy * (r + far + h / 2)
            box = (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2)
            inside = box[0] > frame[0] and box[2] < frame[2] and box[1] > frame[1] and box[3] < frame[3]
            if not inside or any(_meet(box, other) for other in taken + written):
                continue
            leader = _beads((px, py), _nearest(px, py, box), 1.0) if far >= 10 else []
            if not any(_meet(bead, name) for bead in leader for name in written):
                return box[0], box[1], far
    return None


def _nearest(px: float, py: float, box: Rect) -> Point:
    return min(max(px, box[0]), box[2]), min(max(py, box[1]), box[3])


def _meet(a: Rect, b: Rect) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _box(extent: Any) -> Rect:
    return extent.x0, extent.y0, extent.x1, extent.y1
