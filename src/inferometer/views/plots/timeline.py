"""A run of requests as pictures: the engine over time, and how the latencies are spread.

write_timeline(outcome, "out", "llama-3.1-8b · 1 × NVIDIA H200")      # [out/timeline.png, out/latencies.png]
write_day(search_result, "out", "day.csv")                              # [out/day.png]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...base.units import percent, plural, seconds, si
from ...search.search_result import Day, PolicyResult, Search
from ...serving.capacity import Capacity
from ...serving.metrics import good_requests, latencies
from ...serving.outcome import Outcome
from ...serving.replay import token_bins
from .. import files
from .canvas import brief, logarithmic, page, picture, style
from .palette import BLUE, FAINT, GREEN, GRID, INK, MUTED, ORANGE, PURPLE, SKY, VERMILLION, tint

TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E"}


def write_timeline(
    outcome: Outcome,
    folder: str | Path,
    subtitle: str,
    goals: Mapping[str, float] | None = None,
) -> list[Path]:
    """Both pictures; limits of ``--goodput`` are drawn into the second."""
    target = files.folder(folder)
    with style():
        return [
            files.write(target / "timeline.png", picture(timeline(outcome, subtitle))),
            files.write(target / "latencies.png", picture(spread(outcome, subtitle, goals or {}))),
        ]


# ------------------------------------------------------------------ the engine over time


def timeline(outcome: Outcome, subtitle: str) -> Any:
    """Requests running and waiting, the cache, tokens a second and the batch, one above the other."""
    s = outcome.series
    figure = page(11.0, 8.2, "Over time", subtitle)
    rows = [("requests", _requests), ("KV cache used", _cache), ("tokens/s", _tokens), ("TTFT", _waits)]
    left, right, low, high, gap = 0.085, 0.985, 0.065, 0.905, 0.035
    tall = (high - low - gap * (len(rows) - 1)) / len(rows)
    end = float(s["time_s"][-1]) if len(s.get("time_s", ())) else float(np.nanmax(outcome.finished_s, initial=1.0))
    for number, (label, draw) in enumerate(rows):
        axes = figure.add_axes((left, high - tall - number * (tall + gap), right - left, tall))
        draw(axes, outcome)
        axes.set_xlim(0, end or 1.0)
        axes.set_ylabel(label, fontsize=9)
        axes.grid(True, color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8.5, length=3, colors=MUTED, labelbottom=number == len(rows) - 1)
        if number == len(rows) - 1:
            axes.set_xlabel("seconds", fontsize=9)
    return figure


def _requests(axes: Any, outcome: Outcome) -> None:
    s = outcome.series
    running, waiting = s["running"], s["waiting"]
    axes.fill_between(s["time_s"], 0, running, step="post", color=BLUE, linewidth=0, label="running")
    axes.fill_between(s["time_s"], running, running + waiting, step="post", color=ORANGE, linewidth=0, label="waiting")
    axes.set_ylim(0, max(1.0, float((running + waiting).max(initial=0))) * 1.12)
    axes.legend(
        loc="upper right", ncols=2, frameon=False, fontsize=8.5, labelcolor=MUTED, handlelength=1, borderaxespad=0.2
    )


def _cache(axes: Any, outcome: Outcome) -> None:
    s = outcome.series
    axes.fill_between(s["time_s"], 0, s["kv_used"] * 100, step="post", color=SKY, linewidth=0)
    axes.plot(s["time_s"], s["kv_used"] * 100, color=BLUE, linewidth=0.8, drawstyle="steps-post")
    highest = float(s["kv_used"].max(initial=0)) * 100
    axes.set_ylim(0, min(104.0, highest * 1.35) or 1.0)
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}%")
    axes.locator_params(axis="y", nbins=5)
    lost = int(outcome.preemptions.sum())
    top = percent(float(s["kv_used"].max(initial=0)))
    note = f"at most {top}" + (f", {plural(int(lost), 'preemption')}" if lost else "")
    axes.text(0.995, 0.93, note, transform=axes.transAxes, ha="right", va="top", fontsize=8.5, color=MUTED)


def _tokens(axes: Any, outcome: Outcome) -> None:
    """Tokens a second by the engine's account, and those that came out, each over an eightieth of the run."""
    bins = token_bins(outcome)
    computed, made, edges = bins.computed_tokens / bins.width_s, bins.output_tokens / bins.width_s, bins.edges_s
    axes.stairs(computed, edges, color=VERMILLION, linewidth=1.2, label="computed, incl. prefill")
    axes.stairs(made, edges, color=GREEN, linewidth=1.4, label="output")
    axes.set_ylim(0, max(1.0, float(computed.max()), float(made.max())) * 1.2)
    axes.yaxis.set_major_formatter(lambda y, _: si(y))
    axes.legend(
        loc="upper right", ncols=2, frameon=False, fontsize=8.5, labelcolor=MUTED, handlelength=1.4, borderaxespad=0.2
    )


def _waits(axes: Any, outcome: Outcome) -> None:
    ttft = latencies(outcome)["ttft"] / 1e3
    seen = ~np.isnan(ttft)
    size = 14 if seen.sum() < 300 else 5 if seen.sum() < 5000 else 1.5
    axes.scatter(outcome.arrival_s[seen], ttft[seen], s=size, color=BLUE, linewidth=0, alpha=0.7, rasterized=True)
    logarithmic(axes, "y", ttft[seen])
    if axes.get_yscale() == "linear":
        axes.set_ylim(0, float(ttft[seen].max(initial=0)) * 1.15 or 1.0)
        axes.locator_params(axis="y", nbins=5)
    axes.yaxis.set_major_formatter(lambda y, _: brief(y) if y > 0 else "0")


# ------------------------------------------------------------------ how latencies are spread


def spread(outcome: Outcome, subtitle: str, goals: Mapping[str, float]) -> Any:
    """Histograms of the three latencies with median, p90 and p99, and the share that keeps each limit."""
    by_metric = latencies(outcome)
    kept = f" · {percent(float(good_requests(by_metric, dict(goals)).mean()))} meet every limit" if goals else ""
    figure = page(11.0, 3.9, f"Latencies of {len(outcome.arrival_s):,} requests{kept}", subtitle)
    for number, (key, title) in enumerate(TITLES.items()):
        axes = figure.add_axes((0.027 + number * 0.328, 0.12, 0.29, 0.53))
        _histogram(axes, by_metric[key][~np.isnan(by_metric[key])] / 1e3, title, goals.get(key))
    return figure


def _histogram(axes: Any, values: np.ndarray, title: str, limit: float | None) -> None:
    axes.text(0, 1.17, title, transform=axes.transAxes, fontsize=10, weight="bold")
    axes.tick_params(labelsize=8.5, length=3, colors=MUTED, left=False, labelleft=False)
    axes.spines["left"].set_visible(False)
    if not len(values):
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color=MUTED)
        return
    low, high = float(values.min()), float(values.max())
    wide = high > 12 * max(float(np.median(values)), 1e-9) and low > 0
    edges = np.geomspace(low, high, 45) if wide else np.linspace(0 if low < 0.5 * high else low, high, 45)
    if edges[0] == edges[-1]:
        edges = np.array([values[0] * 0.9, values[0] * 1.1 + 1e-9])
    axes.hist(values, edges, color=tint(BLUE, 0.75), linewidth=0)
    if wide:
        axes.set_xscale("log")
    top = axes.get_ylim()[1]
    points = np.percentile(values, (50, 90, 99))
    for value, color in zip(points, (INK, ORANGE, VERMILLION), strict=True):
        axes.plot([value, value], [0, top], color=color, linewidth=1.3)
    if limit is not None:
        axes.axvspan(limit / 1e3, max(axes.get_xlim()[1], limit / 1e3), color=FAINT, alpha=0.45, linewidth=0, zorder=0)
        share = percent(float((values <= limit / 1e3).mean()))
        axes.text(
            1.0,
            1.17,
            f"{share} within {brief(limit / 1e3)}",
            transform=axes.transAxes,
            ha="right",
            fontsize=8.5,
            color=GREEN,
        )
    labels = zip(("median", "p90", "p99"), points, (INK, ORANGE, VERMILLION), (0.0, 0.36, 0.68), strict=True)
    for word, value, color, x in labels:
        axes.text(x, 1.04, f"{word} {seconds(float(value))}", transform=axes.transAxes, fontsize=8.5, color=color)
    axes.set_ylim(0, top)
    if not wide:
        axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(lambda x, _: brief(x))
    axes.minorticks_off()


def tried_rates(capacity: Capacity) -> Any:
    """The share of good requests over the rates that were tried, and the highest that holds."""
    limits = ", ".join(f"{name} ≤ {limit:g} ms" for name, limit in capacity.goodput.items())
    title = f"{capacity.request_rate:,.4g} requests/s is the highest rate that holds"
    figure = page(8.0, 4.2, title, f"{percent(capacity.share)} of the requests keep {limits}")
    axes = figure.add_axes((0.095, 0.125, 0.88, 0.67))
    for holds, color, label in ((True, GREEN, "holds"), (False, VERMILLION, "does not hold")):
        tried = [(one.request_rate, one.good * 100) for one in capacity.tried if one.holds is holds]
        axes.plot(*zip(*tried, strict=True) if tried else ([], []), "o", color=color, markersize=5, label=label)
    axes.axhline(capacity.share * 100, color=INK, linewidth=0.9, linestyle=(0, (2, 2)))
    axes.axvline(capacity.request_rate, color=MUTED, linewidth=0.9)
    axes.set_ylim(-2, 102)
    axes.set_xlabel("requests/s", fontsize=9)
    axes.set_ylabel("good requests", fontsize=9)
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:.0f}%")
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, length=3, colors=MUTED)
    axes.legend(frameon=False, fontsize=8.5, labelcolor=MUTED)
    return figure


# ------------------------------------------------------------------ load over a day, and what carries it

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
