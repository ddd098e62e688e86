"""The paper that pictures are drawn on: one style, a page with its title, and figures as files.

with style():
    figure = page(10, 4, "Requests over time", "llama-3.1-8b · 1 × NVIDIA H200")
    picture(figure, "png")      # the bytes of a file
"""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Iterable
from html import escape
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from ...base.extras import load_library
from ...base.units import seconds
from .palette import BLUE, GREEN, GREY, INK, MUTED, ORANGE, PURPLE, VERMILLION

BOUNDS = {
    "memory": BLUE,
    "compute": VERMILLION,
    "communication": GREEN,
    "host": GREY,
    "wait": PURPLE,
    "draft": ORANGE,
}
FORMATS = ("png", "svg", "pdf")
WAITS = {"host": "host", "wait": "other stages", "draft": "draft model"}
FONT = "DejaVu Sans"  # what matplotlib brings along, so that both pictures have the same widths
POINTS = 0.72  # of a pixel at 100 dpi
logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns of caches that it cannot write: pictures need none
_MEAN = 0.54  # the same of text that is no name, on average
_WIDE = 0.66  # of a character, in units of the font's size: an upper estimate

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]


class Box(NamedTuple):
    """A rectangle, maybe with round corners."""

    x: float
    y: float
    w: float
    h: float
    fill: str
    edge: str
    radius: float
    width: float


class Label(NamedTuple):
    """One line of text; ``y`` is its baseline."""

    x: float
    y: float
    text: str
    size: float
    color: str
    anchor: Anchor
    bold: bool
    halo: bool


class Stroke(NamedTuple):
    """From point to point, straight, or smooth with vertical ends; with an arrow's head where it ends."""

    points: tuple[Point, ...]
    color: str
    width: float
    smooth: bool
    dashed: bool
    head: bool


def bounds(kinds: Iterable[str]) -> dict[str, str]:
    """Names of what limits, with their colours: ``bounds(["memory"])  # {'memory-bound': BLUE}``"""
    seen = set(kinds)
    order = [*BOUNDS, *sorted(seen - set(BOUNDS))]
    return {WAITS.get(b, f"{b}-bound"): BOUNDS.get(b, MUTED) for b in order if b in seen}


def clean(text: str) -> str:
    """Text without the control characters that XML forbids."""
    return "".join(c if c.isprintable() else " " for c in text)


def text_width(text: str, size: float) -> float:
    """Pixels that a line of text needs at most."""
    return len(text) * size * _WIDE


class Scene:
    """Things to draw, later ones on top."""

    def __init__(self, width: float, height: float, title: str = "") -> None:
        self.width, self.height, self.title = width, height, clean(title)
        self.items: list[Box | Label | Stroke] = []

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        *,
        fill: str = "none",
        edge: str = "none",
        radius: float = 0.0,
        width: float = 1.0,
    ) -> None:
        """A rectangle from its upper left corner."""
        self.items.append(Box(x, y, w, h, fill, edge, radius, width))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12.0,
        color: str = INK,
        anchor: Anchor = "start",
        bold: bool = False,
        halo: bool = False,
    ) -> None:
        """A line of text; with ``halo`` a white rim keeps it readable on top of lines."""
        self.items.append(Label(x, y, clean(text), size, color, anchor, bold, halo))

    def curve(
        self,
        *points: Point,
        color: str = MUTED,
        width: float = 1.3,
        smooth: bool = False,
        dashed: bool = False,
        head: bool = True,
    ) -> None:
        """A line through the points."""
        self.items.append(Stroke(points, color, width, smooth, dashed, head))

    def svg(self) -> str:
        """The picture as SVG text."""
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}, Verdana, sans-serif">',
            f"<title>{escape(self.title)}</title>",
            '<rect width="100%" height="100%" fill="white"/>',
            *(_svg(item) for item in self.items),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def figure(self, dpi: float = 100.0) -> Any:
        """The picture as a matplotlib figure of one pixel per unit at 100 dpi."""
        Figure = load_library("matplotlib.figure", "a picture").Figure

        figure = Figure(figsize=(self.width / 100, self.height / 100), dpi=dpi, facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_xlim(0, self.width)
        axes.set_ylim(self.height, 0)
        axes.axis("off")
        for order, item in enumerate(self.items):
            _paint(axes, item, 10 + order)
        return shows_itself(figure)


def _svg(item: Box | Label | Stroke) -> str:
    if isinstance(item, Box):
        place = f'x="{item.x:.1f}" y="{item.y:.1f}" width="{item.w:.1f}" height="{item.h:.1f}" rx="{item.radius:g}"'
        return f'<rect {place} fill="{item.fill}" stroke="{item.edge}" stroke-width="{item.width:g}"/>'
    if isinstance(item, Label):
        style = ' font-weight="bold"' if item.bold else ""
        style += ' stroke="white" stroke-width="3.5" stroke-linejoin="round" paint-order="stroke"' if item.halo else ""
        place = f'x="{item.x:.1f}" y="{item.y:.1f}" font-size="{item.size:g}" text-anchor="{item.anchor}"'
        return f'<text {place} fill="{item.color}"{style}>{escape(item.text)}</text>'
    path = ""
    for command, points in _path(item):
        path += command + " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="5 4"' if item.dashed else ""
    line = f'<path d="{path}" fill="none" stroke="{item.color}" stroke-width="{item.width:g}"{dash}/>'
    if not item.head:
        return line
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in _head(item))
    return f'{line}<polygon points="{corners}" fill="{item.color}"/>'


def _path(item: Stroke) -> list[tuple[str, list[Point]]]:
    """The line as move, line and cubic commands; it stops where the arrow's head begins."""
    points = list(item.points)
    if item.head:
        (x0, y0), (x1, y1) = points[-2], points[-1]
        dx, dy = (0.0, 1.0 if y1 >= y0 else -1.0) if item.smooth else _direction(points[-2], points[-1])
        points[-1] = (x1 - 5 * dx, y1 - 5 * dy)
    commands: list[tuple[str, list[Point]]] = [("M", [points[0]])]
    for (x0, y0), (x1, y1) in pairwise(points):
        if item.smooth and x0 != x1:
            middle = (y0 + y1) / 2
            commands.append(("C", [(x0, middle), (x1, middle), (x1, y1)]))
        else:
            commands.append(("L", [(x1, y1)]))
    return commands


def _direction(a: Point, b: Point) -> Point:
    dx, dy = b[0] - a[0], b[1] - a[1]
    length = (dx * dx + dy * dy) ** 0.5 or 1.0
    return dx / length, dy / length


def _head(item: Stroke) -> list[Point]:
    """The corners of the arrow's head."""
    (x, y), before = item.points[-1], item.points[-2]
    dx, dy = (0.0, 1.0 if y >= before[1] else -1.0) if item.smooth else _direction(before, (x, y))
    back = (x - 7 * dx, y - 7 * dy)
    return [(x, y), (back[0] - 3.5 * dy, back[1] + 3.5 * dx), (back[0] + 3.5 * dy, back[1] - 3.5 * dx)]


def _paint(axes: Any, item: Box | Label | Stroke, order: float) -> None:
    if isinstance(item, Box):
        _paint_box(axes, item, order)
    elif isinstance(item, Label):
        _paint_label(axes, item, order)
    else:
        _paint_stroke(axes, item, order)


def _paint_box(axes: Any, item: Box, order: float) -> None:
    from matplotlib.patches import Ellipse, FancyBboxPatch

    look: dict[str, Any] = {
        "facecolor": item.fill,
        "edgecolor": item.edge,
        "linewidth": item.width * POINTS,
        "zorder": order,
    }
    if 2 * item.radius == item.w == item.h:
        axes.add_patch(Ellipse((item.x + item.w / 2, item.y + item.h / 2), item.w, item.h, **look))
        return
    corners = f"round,pad=0,rounding_size={item.radius}" if item.radius else "square,pad=0"
    axes.add_patch(FancyBboxPatch((item.x, item.y), item.w, item.h, boxstyle=corners, **look))


def _paint_label(axes: Any, item: Label, order: float) -> None:
    from matplotlib import patheffects

    axes.text(
        item.x,
        item.y,
        item.text,
        fontsize=item.size * POINTS,
        color=item.color,
        ha={"start": "left", "middle": "center", "end": "right"}[item.anchor],
        va="baseline",
        weight="bold" if item.bold else "normal",
        family=FONT,
        path_effects=[patheffects.withStroke(linewidth=2.5, foreground="white")] if item.halo else [],
        zorder=order,
        parse_math=False,
    )


def _paint_stroke(axes: Any, item: Stroke, order: float) -> None:
    from matplotlib.patches import PathPatch, Polygon
    from matplotlib.path import Path

    kinds = {"M": [Path.MOVETO], "L": [Path.LINETO], "C": [Path.CURVE4] * 3}
    points: list[Point] = []
    codes: list[Any] = []
    for command, more in _path(item):
        points += more
        codes += kinds[command]
    axes.add_patch(
        PathPatch(
            Path(points, codes),
            facecolor="none",
            edgecolor=item.color,
            linestyle=(0, (4, 3)) if item.dashed else "solid",
            linewidth=item.width * POINTS,
            zorder=order,
            capstyle="butt",
        )
    )
    if item.head:
        axes.add_patch(Polygon(_head(item), closed=True, facecolor=item.color, linewidth=0, zorder=order))


# ------------------------------------------------------------------ figures of matplotlib

DPI = 150.0
_PIXELS = 12e6  # no picture is larger than this
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "inferometer",
    "svg.fonttype": "none",
}


def style() -> Any:
    """The context in which figures are made and saved."""
    return load_library("matplotlib", "a picture").rc_context(_STYLE)


def page(width: float, height: float, title: str, subtitle: str) -> Any:
    """A figure of so many inches with its title: what it shows, and of what."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)  # what measures text; pyplot, and the user's own backend, are left alone
    figure.text(0.28 / width, 1 - 0.34 / height, title, fontsize=13, weight="bold", parse_math=False)
    subtitle = clean(subtitle)
    small = min(9.0, (width - 0.5) * 72 / (max(len(subtitle), 1) * _MEAN))  # a long one is smaller, not cut
    figure.text(0.28 / width, 1 - 0.58 / height, subtitle, fontsize=small, color=MUTED, parse_math=False)
    return shows_itself(figure)


def shows_itself(figure: Any) -> Any:
    """The figure, which a notebook shows as the last line of a cell, though pyplot knows nothing of it."""

    def png() -> bytes:
        with style():
            return picture(figure)

    figure._repr_png_ = png
    return figure


def picture(figure: Any, kind: str = "png") -> bytes:
    """A figure as the bytes of a file; the same figure always gives the same bytes."""
    out = io.BytesIO()
    width, height = figure.get_size_inches()
    dpi = min(DPI, (_PIXELS / (width * height)) ** 0.5)
    dates = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    figure.savefig(out, format=kind, dpi=dpi, facecolor="white", metadata=dates)
    return out.getvalue()


def brief(value: float) -> str:
    """Seconds along an axis, without digits that say nothing: ``20 ms``"""
    number, _, unit = seconds(value).partition(" ")
    return f"{float(number):g} {unit}"


def share_text(value: float) -> str:
    """``share_text(0.256)  # '25.6%'``"""
    return "<0.1%" if 0 < value < 0.0005 else f"{value * 100:.1f}%"


def logarithmic(axes: Any, which: str, values: Any) -> None:
    """By powers where the largest is over twelve times the smallest, with 1, 2 and 5 of each if these are few."""
    from matplotlib.ticker import LogLocator

    known = [float(value) for value in values if math.isfinite(value)]
    if known and min(known) > 0 and max(known) > 12 * min(known):
        getattr(axes, f"set_{which}scale")("log")
        subs = (1.0, 2.0, 5.0) if max(known) < 500 * min(known) else (1.0,)
        getattr(axes, f"{which}axis").set_major_locator(LogLocator(subs=subs))
    axes.minorticks_off()
