"""The result of a search for people: the winner and why, the others and why not, commands; and the Pareto front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...base.pareto import pareto_front
from ...base.units import money, percent, plural, seconds
from ...search.explanation import origins_line
from ...search.launch.processes import BENCH, SGLANG, TRTLLM, VLLM
from ...search.plan_table import LoadPoints, PlanTable, keeps_limits, load_points
from ...search.search_result import Candidate, Day, Search
from ...search.session_search_result import SessionPlan, SessionSearch
from ...serving.metrics import limits_text
from ...serving.synthetic import stretch_label
from ...specs.catalog import engine
from .. import files
from ..plots.canvas import page, picture, style
from ..plots.palette import BLUE, GREEN, GRID, INK, MUTED, ORANGE, SILVER, SKY, VERMILLION, tint
from .document import Cell, Column, Page, Paragraph, Part, ShellCommand, TextTable
from .serving import curve

HELD, FAILED = 8, 4  # plans for sessions that are shown
ENGINES = {VLLM: "vLLM", SGLANG: "SGLang", TRTLLM: "TensorRT-LLM", BENCH: "Measure it"}


def shown(result: Search, timed: bool = True) -> Page:
    """What people read of a search; a notebook shows no seconds of its own, which differ from run to run."""
    parts: list[Part] = [Paragraph(header(result), style="bold"), Paragraph(""), *_verdict(result)]
    if result.plans:
        parts += [Paragraph(""), _table(result)]
    if result.day is not None:
        parts += day_section(result.day, result.goodput_share)
    if result.relaxations:
        parts += [Paragraph("Changes that would work (each was tried):", style="bold")]
        parts += [Paragraph(f"  {one.change}  →  {one.plan}", style="green") for one in result.relaxations]
    if result.rejected:
        parts += [Paragraph("Promising, but ruled out:", style="bold")]
        parts += [Paragraph(f"  ✗ {plan.label}: {plan.reason}", style="red") for plan in result.rejected[:6]]
    parts += [Paragraph(line, style="dim") for line in _accounting(result, timed)]
    for key, lines in result.commands.items():
        version = result.launches[key].version if key in result.launches else ""
        parts += [Paragraph(""), Paragraph(f"{ENGINES[key]} {version}".rstrip(), style="bold")]
        parts += [ShellCommand(line) for line in lines]
    parts += [Paragraph(f"! {warning}", style="yellow") for warning in result.warnings]
    return Page(parts)


def _verdict(result: Search | SessionSearch) -> list[Part]:
    """The winner and why it wins, or why there is none."""
    if result.winner is None:
        return [Paragraph(f"✗ {result.reason}", style="bold red")]
    why = [Paragraph(f"  {sentence}") for sentence in result.why]
    return [Paragraph(f"▶ {result.winner.label}", style="bold green"), *why]


def header(result: Search) -> str:
    """``llama-3.1-70b · 16 × h200 · vLLM · 4,000 in, 500 out · 90% meet TTFT ≤ 500 ms``"""
    work, gpus = result.workload, " or ".join(result.space["gpu"])
    lengths = f"{work['input_len']:,.0f} in, {work['output_len']:,.0f} out"
    if work["trace"]:
        lengths = f"{Path(work['trace']).name} ({lengths})"
    rate = f" at {work['request_rate']:.4g}/s" if work["request_rate"] else ""
    rate += f", {stretch_label(work['stretch'])}" if work["stretch"] else ""
    limits = limits_text(result.goodput)
    keep = f"{result.goodput_share:.0%} meet {limits}" if limits else result.objective
    name = f"{engine(result.engine).label} {result.engine_version}".strip() if result.engine else ""
    pieces = (result.model, f"{result.num_gpus} × {gpus}", name, lengths + rate, keep)
    return " · ".join(piece for piece in pieces if piece)


def _table(result: Search) -> TextTable:
    """Plans that were simulated. One that is beaten fails the rate that it was tried at; a tie may hold more."""
    several_gpus, share = len(result.space["gpu"]) > 1, f"p{result.goodput_share * 100:.0f}"
    rated = result.workload["request_rate"] is not None
    table = TextTable(
        [
            Column("plan", "<", folds=True),
            *([Column("GPU", "<", priority=1)] if several_gpus else []),
            *([Column("GPUs", priority=1)] if rated else []),
            Column("budget", priority=6),
            Column("req/s", priority=2),
            Column("tok/s/GPU"),
            Column("tok/s/user", priority=5),
            Column(f"TTFT {share}", priority=3),
            Column(f"TPOT {share}", priority=3),
            Column("$/M", priority=4),
            Column("", "<", name="verdict", priority=1),
        ]
    )
    marks = {"wins": "bold green", "ties": "green", "holds": "green", "beaten": "yellow"}
    for plan in result.plans:
        f, cost = plan.simulated or plan.priced, (plan.simulated or plan.priced).cost_per_million_output_tokens
        table.add_row(
            plan.label,
            *([plan.gpu] if several_gpus else []),
            *([f"{plan.gpus}"] if rated else []),
            f"{plan.pools[0].max_num_batched_tokens:,}",
            f"{plan.rate_sign}{f.request_rate:,.4g}",
            f"{plan.rate_sign}{f.output_throughput_per_gpu:,.0f}",
            f"{f.output_throughput_per_user:,.1f}",
            _at_share(plan, "ttft"),
            _at_share(plan, "tpot"),
            "–" if cost is None else money(cost, plan.cost_sign),
            Cell(plan.verdict if plan.verdict in marks else "", marks.get(plan.verdict, "")),
        )
    return table


def _at_share(plan: Candidate, name: str) -> Cell:
    """The percentile of --goodput-share in the simulation; red where it is the limit that the plan misses."""
    kept = getattr(plan.trial, f"{name}_ms", {}).get("share") if plan.trial is not None else None
    return Cell("–" if kept is None else seconds(kept / 1e3), "red" if name in plan.missed else "")


def _accounting(result: Search, timed: bool) -> list[str]:
    """How many plans were estimated and simulated, how long that took, and why others are not possible."""
    c = result.counts

    def took(*stages: str) -> str:
        return f" in {seconds(sum(result.seconds.get(stage, 0) for stage in stages))}" if timed else ""

    plans = c.get("plans_aggregated", 0) + c.get("plans_disaggregated", 0)
    lines = [
        f"{plural(c.get('servers', 0), 'server type')}, {plural(plans, 'plan')}, "
        f"{plural(c.get('points', 0), 'load point')} estimated{took('enumerate', 'price')}"
    ]
    if c.get("plans_simulated"):
        runs = f"{plural(c.get('simulations', 0), 'run')}{took('simulate')}"
        lines[0] += f"; {plural(c['plans_simulated'], 'plan')} simulated, {runs}"
    if result.origins:
        lines.append(origins_line(result.origins))
    if result.rejections:
        lines.append(
            "plans ruled out: "
            + ", ".join(f"{reason} ({count:,})" for reason, count in list(result.rejections.items())[:6])
        )
    return lines


# ------------------------------------------------------------------ sessions


def sessions_shown(result: SessionSearch, timed: bool = True) -> Page:
    """What people read of a search for sessions; a notebook shows no seconds of its own, which differ."""
    keep = f"{result.goodput_share:.0%} of turns within {limits_text(result.goodput)}"
    sessions = f"{plural(result.turns, 'turn')} {result.traffic} · {plural(result.sessions, 'session')}"
    gpus = f"{result.num_gpus} × {' or '.join(result.space['gpu'])}"
    name = engine(result.engine).label if result.engine else ""
    head = " · ".join(piece for piece in (result.model, gpus, name, sessions, keep) if piece)
    parts: list[Part] = [Paragraph(head, style="bold"), Paragraph(""), *_verdict(result)]
    if result.plans:
        parts += [Paragraph(""), _session_plans(result)]
    if result.relaxations:
        parts += [Paragraph("Changes that would work (each was tried):", style="bold")]
        parts += [Paragraph(f"  {one.change}  →  {one.plan}", style="green") for one in result.relaxations]
    parts += [Paragraph(line, style="dim") for line in _session_accounting(result, timed)]
    for key, lines in result.commands.items():
        label = "Simulate it again" if key == BENCH else f"{ENGINES[key]} {result.launches[key].version}".rstrip()
        parts += [Paragraph(""), Paragraph(label, style="bold"), *map(ShellCommand, lines)]
    return Page([*parts, *(Paragraph(f"! {warning}", style="yellow") for warning in result.warnings)])


def _session_plans(result: SessionSearch) -> TextTable:
    """The plans that were simulated; of one that was stopped, the most that its share of turns in time can be."""
    share = f"p{result.goodput_share * 100:g}"
    table = TextTable(
        [
            Column("plan", "<", folds=True),
            Column("GPUs", priority=1),
            Column("in time"),
            Column(f"TTFT {share}", priority=2),
            Column(f"TPOT {share}", priority=3),
            Column("cached", priority=4),
            Column("from CPU", priority=5),
            Column("$/session"),
            Column("", "<", name="verdict", priority=1),
        ],
        elsewhere="--json",
    )
    holding = [plan for plan in result.plans if plan.holds]
    for plan in [*holding[:HELD], *result.plans[len(holding) :][:FAILED]]:
        verdict = "wins" if plan is result.winner else "holds" if plan.holds else "fails"
        style = {"wins": "bold green", "holds": "green", "fails": "red"}[verdict]
        table.add_row(
            plan.label,
            f"{plan.gpus}",
            f"{'≤ ' if plan.stopped else ''}{percent(plan.good_share)}",
            _at_limit(plan, "ttft"),
            _at_limit(plan, "tpot"),
            "–" if plan.stopped else percent(plan.cached_share),
            "–" if plan.stopped else percent(plan.tier_shares.get("cpu", 0.0)),
            "–" if plan.cost_per_session is None else money(plan.cost_per_session),
            Cell(verdict, style),
        )
    return table


def _at_limit(plan: SessionPlan, name: str) -> Cell:
    kept = getattr(plan, f"{name}_ms").get("share")
    return Cell("–" if kept is None else seconds(kept / 1e3), "red" if name in plan.missed else "")


def _session_accounting(result: SessionSearch, timed: bool) -> list[str]:
    """How many plans were simulated, and why the others need not be."""
    c, took = result.counts, f" in {seconds(result.seconds)}" if timed else ""
    runs, sessions = plural(c["simulations"], "run"), plural(result.sessions, "session")
    stopped = f", {c['plans_stopped']:,} of them until too many turns were late" if c["plans_stopped"] else ""
    same = f", {c['plans_same']:,} the same with less memory that is not used" if c["plans_same"] else ""
    lines = [
        f"{plural(c['plans'], 'plan')}: {c['plans_simulated']:,} simulated with all {sessions}{stopped} "
        f"({runs}{took}){same}; {c['plans_dearer']:,} dearer by their bounds, {c['plans_worse']:,} no better than one "
        "of these"
    ]
    if result.rejections:
        ruled_out = (f"{reason} ({count:,})" for reason, count in list(result.rejections.items())[:6])
        lines.append(f"servers ruled out: {', '.join(ruled_out)}")
    return lines


# ------------------------------------------------------------------ load over time


def day_section(day: Day, share: float) -> list[Part]:
    """The section of a search's result; ``share`` of the requests must keep the limits."""
    least, most = min(window.replicas for window in day.windows), day.peak.replicas
    need = f"{least} to {most} replicas" if least != most else plural(most, "replica")
    windows = f"{plural(len(day.windows), 'window')} of {duration(day.window_s)}"
    parts: list[Part] = [
        Paragraph(
            f"Over {duration(day.span_s)} ({plural(day.requests, 'request')} in {windows}), replicas of {day.unit} on "
            f"{plural(day.gpus_per_replica, 'GPU')}",
            style="bold",
        ),
        Paragraph(
            f"  needs {need}, {day.mean_replicas:.2f} on average; the peak is "
            f"{duration(day.peak.start_s)} after the start"
        ),
        _sparks(day),
        Paragraph(""),
        _policy_table(day, share),
    ]
    if day.target is not None and any(one.policy == "hpa" for one in day.policies):
        each = f"{day.target:.3g} request{'' if day.target == 1 else 's'}"
        parts.append(
            Paragraph(
                f"  A replica takes {seconds(day.startup_s)} to start. The autoscaler targets {each} per replica, "
                f"running and waiting, with at most {plural(day.max_replicas, 'replica')}."
            )
        )
    return [*parts, *(Paragraph(f"  ! {note}", style="yellow") for note in day.notes), Paragraph("")]


def duration(value: float) -> str:
    """Seconds as people say them: ``duration(5400)  # '1.5 h'``"""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if value >= 2 * size or (value >= size and size < 86400.0):
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} s"


def _sparks(day: Day) -> TextTable:
    """Lines of blocks: the load, and what it needs."""
    table = TextTable([Column("", "<"), Column("", "<", elastic=52), Column("", "<")], header=False)
    times = np.array([window.start_s for window in day.windows])
    rates, replicas = [window.request_rate for window in day.windows], [window.replicas for window in day.windows]
    for label, values, most in (
        ("load", rates, f"{max(rates):,.3g} requests/s"),
        ("needed", replicas, plural(max(replicas), "replica")),
    ):
        table.add_row(f"  {label}", curve(times, np.array(values, float), max(values)), f"at most {most}")
    return table


def _policy_table(day: Day, share: float) -> TextTable:
    table = TextTable(
        [
            Column("policy", "<", folds=True),
            Column("GPU-hours"),
            Column("USD", priority=2),
            Column("share", priority=4),
            Column("good"),
            Column("worst window", priority=1),
            Column("TTFT p90", priority=3),
            Column("mean", priority=5, name="mean replicas"),
            Column("most", priority=5, name="most replicas"),
        ],
        elsewhere="--json",
    )
    first = day.policies[0].gpu_hours
    for one in day.policies:
        good, worst = one.good, min(one.window_good) if one.window_good else None
        ttft = "–" if one.p90_ttft_ms is None else seconds(one.p90_ttft_ms / 1e3)
        table.add_row(
            one.name,
            _amount(one.gpu_hours, 1),
            "–" if one.cost is None else _amount(one.cost, 0),
            percent(one.gpu_hours / first) if first else "–",
            _share(good, share),
            _share(worst, share),
            ttft,
            f"{one.mean_replicas:.2f}",
            f"{one.peak_replicas}",
        )
    return table


def _amount(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if value >= 10 else f"{value:.3g}"


def _share(value: float | None, limit: float) -> Cell:
    if value is None:
        return Cell("–")
    return Cell(percent(value), "" if value >= limit else "red")


# ------------------------------------------------------------------ the front


def write_front(result: Search, table: PlanTable, folder: str | Path) -> list[Path]:
    """``pareto.png``: throughput against speed for one user, with the region that keeps the limits."""
    target = files.folder(folder)
    with style():
        return [files.write(target / "pareto.png", picture(pareto(result, table)))]


def pareto(result: Search, table: PlanTable) -> Any:
    """All estimated loads, those that keep the limits, the front, and the simulated plans."""
    points = load_points(table)
    figure = page(9.6, 5.6, _title(result), header(result))
    axes = figure.add_axes((0.085, 0.115, 0.89, 0.72))
    _draw_limit(axes, result, points)
    _draw_loads(axes, points, keeps_limits(table, points))
    front = pareto_front(points.per_user, points.per_gpu)
    axes.plot(points.per_user[front], points.per_gpu[front], color=INK, linewidth=1.1, label="Pareto front", zorder=4)
    draw_simulated(axes, result)
    _finish_axes(axes, points)
    _name_plans(axes, table, points, front)
    return figure


def _title(result: Search) -> str:
    if result.winner is None:
        return "No plan meets the limits"
    metrics = result.winner.simulated or result.winner.priced
    return (
        f"{result.winner.label}: {metrics.output_throughput_per_gpu:,.0f} tokens/s per GPU at "
        f"{metrics.output_throughput_per_user:,.0f} tokens/s per user"
    )


def _draw_limit(axes: Any, result: Search, points: LoadPoints) -> None:
    """The region that keeps the limit of TPOT."""
    if "tpot" not in result.goodput:
        return
    slowest = 1e3 / result.goodput["tpot"]
    axes.axvspan(slowest, points.per_user.max() * 1.5, color=tint(GREEN, 0.1), linewidth=0, zorder=0)
    label = f" TPOT ≤ {result.goodput['tpot']:g} ms"
    above = axes.get_xaxis_transform()
    axes.text(slowest, 0.985, label, transform=above, fontsize=8.5, color=GREEN, va="top")


def _draw_loads(axes: Any, points: LoadPoints, kept: np.ndarray) -> None:
    """All loads as dots: those that miss a limit, and those that keep all, by mode."""
    disaggregated = points.decode_server >= 0
    kinds = (
        (~kept, 5, SILVER, "misses a limit"),
        (kept & ~disaggregated, 7, tint(BLUE, 0.7), "aggregated"),
        (kept & disaggregated, 7, tint(ORANGE, 0.7), "disaggregated"),
    )
    for number, (mask, size, color, label) in enumerate(kinds):
        if mask.any() or number == 0:
            dots = {"s": size, "color": color, "linewidth": 0, "rasterized": True, "label": label}
            axes.scatter(points.per_user[mask], points.per_gpu[mask], **dots)


def _finish_axes(axes: Any, points: LoadPoints) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("output tokens/s per user (1 / TPOT)", fontsize=9.5)
    axes.set_ylabel("output tokens/s per GPU", fontsize=9.5)
    axes.set_ylim(0, float(points.per_gpu.max()) * 1.1)
    axes.set_xlim(float(points.per_user.min()) * 0.92, float(points.per_user.max()) * 1.5)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.xaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "25" else "")
    axes.tick_params(which="both", labelsize=8.5, colors=MUTED)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    legend = axes.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none", fontsize=8.5)
    for handle in legend.legend_handles:
        if hasattr(handle, "set_sizes"):
            handle.set_sizes([90 if handle.get_label().startswith("the winner") else 22])


def _name_plans(axes: Any, table: PlanTable, points: LoadPoints, front: np.ndarray) -> None:
    """Some plans of the front by their layout, where there is room."""
    last, before = (0.0, 0.0), ""
    width, height = np.log(points.per_user.max() / points.per_user.min()), float(points.per_gpu.max())
    for n in front.tolist():
        at = (float(np.log(points.per_user[n]) / width), float(points.per_gpu[n]) / height)
        server = table.servers.servers[int(points.prefill_server[n])]
        name = f"{server.layout} {server.kind.quantization}"
        if points.decode_server[n] >= 0:
            decode = table.servers.servers[int(points.decode_server[n])].layout
            name = f"{points.replicas[n]}×{server.layout}→{points.decode_replicas[n]}×{decode}"
        if abs(at[0] - last[0]) + abs(at[1] - last[1]) < 0.13 or name == before:
            continue
        last, before = at, name
        place = (points.per_user[n], points.per_gpu[n])
        axes.annotate(name, place, (4, 4), textcoords="offset points", fontsize=7.5, color=MUTED, zorder=5)


def draw_simulated(axes: Any, result: Search) -> None:
    """Plans that hold in the simulation, the winner as a star: ``draw_simulated(figure.subplots(), result)``"""
    labels = {True: "the winner, simulated", False: "others, simulated"}
    for plan in result.plans:
        if plan.simulated is None or plan.verdict not in ("wins", "ties", "holds"):
            continue
        wins = plan.verdict == "wins"
        axes.scatter(
            plan.simulated.output_throughput_per_user,
            plan.simulated.output_throughput_per_gpu,
            s=190 if wins else 38,
            marker="*" if wins else "o",
            color=VERMILLION if wins else SKY,
            edgecolor="white",
            linewidth=0.8,
            zorder=6,
            label=labels.pop(wins, None),  # once each, for the legend
        )
