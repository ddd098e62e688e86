"""Load over time as a picture: what comes, what it needs, what each way to run the replicas holds and keeps.

write_day(search_result, "out")       # [out/day.png]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...base.units import percent
from ...search.search_result import Day, PolicyResult, Search
from .. import files
from .canvas import page, picture, style
from .palette import BLUE, GREEN, GRID, INK, MUTED, ORANGE, PURPLE, VERMILLION, tint

COLORS = {"autoscaled": VERMILLION, "scheduled": BLUE, "static, as above": PURPLE, "static, for the peak": MUTED}


def write_day(result: Search, folder: str | Path, subtitle: str) -> list[Path]:
    """``day.png``; nothing where the search did not look at load over time."""
    if result.day is None:
        return []
    with style():
        figure = day_figure(result.day, result.goodput_share, subtitle)
        return [files.write(files.folder(folder) / "day.png", picture(figure))]


def day_figure(day: Day, share: float, subtitle: str) -> Any:
    """Requests a second, GPUs, and the share of requests within the limits, one above the other."""
    figure = page(11.0, 7.4, _title(day), subtitle)
    unit = 3600.0 if day.span_s >= 3 * 3600 else 60.0
    left, width = 0.075, 0.735
    panels = [(0.655, 0.225), (0.315, 0.30), (0.075, 0.20)]
    axes = [figure.add_axes((left, low, width, tall)) for low, tall in panels]
    _draw_load(axes[0], day, unit)
    _draw_gpus(axes[1], day, unit)
    _draw_good(axes[2], day, share, unit)
    for number, one in enumerate(axes):
        one.set_xlim(0, day.span_s / unit)
        one.grid(True, color=GRID, linewidth=0.8)
        one.set_axisbelow(True)
        one.tick_params(labelsize=8.5, length=3, colors=MUTED, labelbottom=number == 2)
        if unit == 3600.0 and 20 <= day.span_s / unit <= 50:
            one.set_xticks(range(0, int(day.span_s / unit) + 2, 3))
    axes[2].set_xlabel("hours" if unit == 3600.0 else "minutes", fontsize=9)
    return figure


def _title(day: Day) -> str:
    peak = day.policies[0]
    scaled = next((one for one in day.policies if one.name.startswith("autoscaled")), day.policies[-1])
    share = scaled.gpu_hours / peak.gpu_hours if peak.gpu_hours else 1.0
    good = "" if scaled.good is None else f", {percent(scaled.good)} of the requests within the limits"
    return f"{scaled.name[0].upper()}{scaled.name[1:]}: {percent(share)} of the peak's GPU-hours{good}"


def _draw_load(axes: Any, day: Day, unit: float) -> None:
    edges = np.array([one.start_s for one in day.windows] + [day.span_s]) / unit
    rates = [one.request_rate for one in day.windows]
    axes.stairs(rates, edges, fill=True, color=tint(BLUE, 0.25), linewidth=0)
    axes.stairs(rates, edges, color=BLUE, linewidth=1.1, baseline=None)
    axes.set_ylim(0, max(rates) * 1.12)
    axes.set_ylabel("requests/s", fontsize=9)


def _steps(policy: PolicyResult, day: Day, unit: float) -> tuple[np.ndarray, np.ndarray]:
    times = np.array([*policy.times_s, day.span_s]) / unit
    counts = np.array([*policy.replicas, policy.replicas[-1]]) * day.gpus_per_replica
    return times, counts


def _draw_gpus(axes: Any, day: Day, unit: float) -> None:
    """Steps of GPUs: what is needed as an area, each policy as a line with its name beside it."""
    edges = np.array([one.start_s for one in day.windows] + [day.span_s]) / unit
    axes.stairs([one.gpus for one in day.windows], edges, fill=True, color=tint(GREEN, 0.35), linewidth=0)
    needed = ("needed in each window", GREEN, float(day.windows[-1].gpus), day.policies[-1])
    labels = [needed]
    for policy in day.policies[:-1]:
        color = _color(policy)
        times, counts = _steps(policy, day, unit)
        dashes = (0, (4, 3)) if policy.policy == "static" else "solid"
        axes.plot(times, counts, drawstyle="steps-post", color=color, linewidth=1.3, linestyle=dashes)
        labels.append((policy.name, color, float(counts[-1]), policy))
    top = max(one.peak_replicas for one in day.policies) * day.gpus_per_replica
    axes.set_ylim(0, top * 1.12)
    axes.set_ylabel("GPUs", fontsize=9)
    _name_lines(axes, labels, top * 1.12)


def _color(policy: PolicyResult) -> str:
    return next((color for start, color in COLORS.items() if policy.name.startswith(start)), ORANGE)


def _name_lines(axes: Any, labels: list[tuple[str, str, float, PolicyResult]], top: float) -> None:
    """Names beside the ends of lines, apart from each other, with what each takes."""
    place = -np.inf
    for name, color, value, policy in sorted(labels, key=lambda label: label[2]):
        place = max(place + 0.185, value / top - 0.02)
        cost = "" if policy.cost is None else f", ${policy.cost:,.0f}"
        text = f"{name}\n{policy.gpu_hours:,.0f} GPU-hours{cost}"
        axes.text(
            1.012,
            min(place, 0.97),
            text,
            transform=axes.transAxes,
            color=color,
            fontsize=8.2,
            va="center",
            linespacing=1.35,
        )


def _draw_good(axes: Any, day: Day, share: float, unit: float) -> None:
    """The share of each window's requests that keep the limits, where a policy loses some."""
    edges = np.array([one.start_s for one in day.windows] + [day.span_s]) / unit
    lowest = share
    for policy in day.policies:
        if policy.window_good is None or policy.name == "lower bound":
            continue
        lowest = min(lowest, *policy.window_good)
        axes.stairs(np.array(policy.window_good) * 100, edges, color=_color(policy), linewidth=1.1, baseline=None)
    axes.axhline(share * 100, color=INK, linewidth=0.9, linestyle=(0, (2, 2)))
    axes.text(
        1.012, share * 100, f"{percent(share)} must", transform=axes.get_yaxis_transform(), fontsize=8.2, va="center"
    )
    axes.set_ylim(max(0.0, lowest * 100 - 4), 101.5)
    axes.set_ylabel("within limits", fontsize=9)
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:.0f}%")
