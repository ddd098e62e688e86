"""The paper that pictures are drawn on: one style, a page with its title, and figures as files.

with style():
    figure = page(10, 4, "Requests over time", "llama-3.1-8b · 1 × NVIDIA H200")
    picture(figure, "png")      # the bytes of a file
"""

from __future__ import annotations

import io
from typing import Any

from ..units import seconds
from .canvas import INK, MUTED, clean

DPI = 150.0
_PIXELS = 12e6  # no picture is larger than this
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": 9.5, "axes.edgecolor": MUTED, "axes.labelcolor": INK,
    "text.color": INK, "xtick.color": MUTED, "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False,
    "svg.hashsalt": "inferometer", "svg.fonttype": "none",
}  # fmt: skip


def style() -> Any:
    """The context in which figures are made and saved."""
    from matplotlib import rc_context

    return rc_context(_STYLE)


def page(width: float, height: float, title: str, subtitle: str) -> Any:
    """A figure of so many inches with its title: what it shows, and of what."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)  # what measures text; pyplot, and the user's own backend, are left alone
    figure.text(0.28 / width, 1 - 0.34 / height, title, fontsize=13, weight="bold", parse_math=False)
    figure.text(0.28 / width, 1 - 0.58 / height, clean(subtitle), fontsize=9, color=MUTED, parse_math=False)
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
