"""Predicted against measured in one picture: TTFT in one panel, TPOT and decode steps in the other.

draw(rows)      # docs/img/accuracy.png, of rows of benchmarks/serving.py and of all engine steps
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import engine_steps
import numpy as np
from accuracy_summary import UNTRAINED
from measurements import OPTIONAL
from PIL import Image

from inferometer.views.plots.canvas import page, picture, style
from inferometer.views.plots.palette import BLUE, GREEN, MUTED, ORANGE, VERMILLION

if TYPE_CHECKING:
    from serving import Row

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "img" / "accuracy.png"
KINDS = {  # what is drawn first lies below
    "closed loops": ORANGE,
    "disaggregated": GREEN,
    "engine steps": BLUE,
    "online runs": VERMILLION,
}
FEW = 100  # points of a kind that are drawn larger
Points = dict[tuple[str, str], list[tuple[float, float]]]


def points(rows: Iterable[Row]) -> Points:
    """Pairs of measured and predicted ms by panel and kind."""
    pairs: Points = defaultdict(list)
    kinds = {"silicon": "closed loops", "disaggregated": "disaggregated"}
    for row in rows:
        if row.case.set in OPTIONAL:
            continue
        for metric, panel in (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "TPOT")):
            if metric in row.case.measured and metric in row.predicted:
                pair = row.case.measured[metric], row.predicted[metric]
                pairs[panel, kinds.get(row.case.set, "online runs")].append(pair)
    for name, path in engine_steps.SETS.items():
        for key, parts in engine_steps.rows(path).items():
            if (name, key[0]) == UNTRAINED:
                continue
            for kind, off in engine_steps.errors(engine_steps.bound_plan(*key), parts).items():
                seconds = parts[kind].seconds
                panel = "TPOT" if kind == "decode" else "TTFT"
                pairs[panel, "engine steps"] += zip(1e3 * seconds, 1e3 * seconds * (1 + off), strict=True)
    return pairs


def draw(rows: Iterable[Row], path: Path = PICTURE) -> None:
    """Write the picture."""
    pairs = points(rows)
    count = sum(map(len, pairs.values()))
    with style():
        figure = page(9.6, 5.1, "Predicted against measured", f"{count:,} means of runs, and engine steps")
        for place, (panel, title) in enumerate((("TTFT", "TTFT"), ("TPOT", "TPOT, decode step"))):
            axes = figure.add_axes((0.095 + 0.49 * place, 0.115, 0.39, 0.70))
            shown = {kind: np.array(pairs[panel, kind]).T for kind in KINDS if pairs[panel, kind]}
            ends = np.concatenate([one.ravel() for one in shown.values()])
            low, high = ends.min() / 1.4, ends.max() * 1.4
            for factor, dash in ((1.0, "-"), (1.25, ":"), (0.8, ":")):
                axes.plot([low, high], [low * factor, high * factor], dash, color=MUTED, linewidth=0.9, zorder=9)
            for kind, (measured, ours) in shown.items():
                label = f"{kind} ({measured.size:,})"
                look = {"s": 16, "alpha": 0.9} if measured.size < FEW else {"s": 5, "alpha": 0.45}
                axes.scatter(measured, ours, color=KINDS[kind], linewidths=0, label=label, **look)
            axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.set_xlabel("measured, ms")
            axes.set_ylabel("predicted, ms")
            axes.set_title(f"{title}  (dotted: 25% off)", fontsize=10.5, loc="left")
            axes.legend(frameon=False, fontsize=8.5, markerscale=2, loc="upper left", handletextpad=0.2)
        few_colors = Image.open(io.BytesIO(picture(figure))).convert("RGB").quantize(96)  # a third of the bytes
        few_colors.save(path, optimize=True)
