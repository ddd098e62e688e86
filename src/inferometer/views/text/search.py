"""What a search found, for people: the winner and why, the others and why not, commands; and the Pareto front."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ...base.pareto import pareto_front
from ...base.units import seconds
from ...search.front import Points, points
from ...search.plan_table import Book
from ...search.search_result import Candidate, Search
from ...search.serve_commands import BENCH, SGLANG, TRTLLM, VLLM
from ...specs.catalog import engine
from .. import files
from ..plots.canvas import page, picture, style
from ..plots.palette import BLUE, GREEN, GRID, INK, MUTED, ORANGE, SILVER, SKY, VERMILLION, tint

ENGINES = {VLLM: "vLLM", SGLANG: "SGLang", TRTLLM: "TensorRT-LLM", BENCH: "and measure it"}


def shown(found: Search) -> Group:
    """The terminal's view."""
    parts: list[Any] = [Text(header(found), style="bold"), Text("")]
    if found.winner is not None:
        parts.append(Text(f"▶ {found.winner.label}", style="bold green"))
        parts += [Text(f"  {sentence}") for sentence in found.why]
    else:
        parts.append(Text(f"✗ {found.reason}", style="bold red"))
    if found.plans:
        parts += [Text(""), _table(found)]
    if found.relaxations:
        parts += [Text("What would do, each found by trying:", style="bold")]
        parts += [Text(f"  {one.change}  →  {one.plan}", style="green") for one in found.relaxations]
    if found.rejected:
        parts += [Text("Looked good, but", style="bold")]
        parts += [Text(f"  ✗ {plan.label}: {plan.reason}", style="red") for plan in found.rejected[:6]]
    parts += [Text(line, style=MUTED) for line in _account(found)]
    for key, lines in found.commands.items():
        parts += [Text(f"\n{ENGINES[key]}", style="bold")]
        parts += [Text(folded(line), style=MUTED if line.startswith("#") else "") for line in lines]
    parts += [Text(f"! {warning}", style="yellow") for warning in found.warnings]
    return Group(*parts)


def folded(command: str, width: int = 100) -> str:
    """A command over several lines, as a shell reads them: broken before flags, so that it can be copied."""
    lines = [""]
    for piece in re.split(r" (?=--)", command):
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + piece
    return "  " + " \\\n    ".join(lines)


def header(found: Search) -> str:
    """``llama-3.1-70b · 16 × h200 · vLLM · 4,000 in, 500 out · 90% keep ttft ≤ 500 ms``"""
    work, gpus = found.workload, " or ".join(found.space["gpu"])
    lengths = f"{work['input_len']:,.0f} in, {work['output_len']:,.0f} out"
    if work["trace"]:
        lengths = f"{Path(work['trace']).name} ({lengths})"
    rate = f" at {work['request_rate']:.4g}/s" if work["request_rate"] else ""
    limits = ", ".join(f"{name} ≤ {limit:g} ms" for name, limit in found.goodput.items())
    keep = f"{found.goodput_share:.0%} keep {limits}" if limits else found.objective
    name = engine(found.engine).label if found.engine else ""
    pieces = (found.model, f"{found.num_gpus} × {gpus}", name, lengths + rate, keep)
    return " · ".join(piece for piece in pieces if piece)


def _table(found: Search) -> Table:
    """Plans that were simulated. One that is beaten does not hold the rate that would make it as good as the winner."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    several, share = len(found.space["gpu"]) > 1, f"p{found.goodput_share * 100:.0f}"
    rated = found.workload["request_rate"] is not None
    heads = [
        "plan",
        *(["GPU"] if several else []),
        *(["GPUs"] if rated else []),
        "budget",
        "req/s",
        "tok/s/GPU",
        "tok/s/user",
        f"TTFT {share}",
        f"TPOT {share}",
        "$/M",
        "",
    ]
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number == 0 or not head else "right", no_wrap=True)
    marks = {"wins": ("wins", "bold green"), "holds": ("holds", "green"), "beaten": ("beaten", "yellow")}
    for plan in found.plans:
        f, cost = plan.simulated or plan.priced, (plan.simulated or plan.priced).cost_per_million_output_tokens
        less = "<" if plan.verdict == "beaten" else ""
        table.add_row(
            plan.label,
            *([plan.gpu] if several else []),
            *([f"{plan.gpus}"] if rated else []),
            f"{plan.pools[0].max_num_batched_tokens:,}",
            f"{less}{f.request_rate:,.4g}",
            f"{less}{f.output_throughput_per_gpu:,.0f}",
            f"{f.output_throughput_per_user:,.1f}",
            _late(plan, "ttft"),
            _late(plan, "tpot"),
            "–" if cost is None else f"{cost:,.2f}",
            Text(*marks.get(plan.verdict, ("", ""))),
        )
    return table


def _late(plan: Candidate, name: str) -> str:
    """What the share that counts keeps, in the simulation."""
    kept = getattr(plan.trial, f"{name}_ms", {}).get("share") if plan.trial is not None else None
    return "–" if kept is None else seconds(kept / 1e3)


def _account(found: Search) -> list[str]:
    """What was looked at, and how long that took."""
    c, took = found.counts, found.seconds
    plans = c.get("plans_aggregated", 0) + c.get("plans_disaggregated", 0)
    lines = [
        f"{c.get('servers', 0):,} servers, {plans:,} plans of them, {c.get('points', 0):,} loads priced in "
        f"{seconds(took.get('enumerate', 0) + took.get('price', 0))}; {c.get('plans_simulated', 0)} plans "
        f"simulated, {c.get('simulations', 0)} runs in {seconds(took.get('simulate', 0))}"
    ]
    if found.rejections:
        lines.append(
            "not possible: " + "; ".join(f"{count:,} {reason}" for reason, count in list(found.rejections.items())[:6])
        )
    return lines


# ------------------------------------------------------------------ the front


def write_front(found: Search, book: Book, folder: str | Path) -> list[Path]:
    """``pareto.png``: throughput against speed for one user, with the region that keeps the limits."""
    target = files.folder(folder)
    with style():
        return [files.write(target / "pareto.png", picture(pareto(found, book)))]


def pareto(found: Search, book: Book) -> Any:
    """All priced loads, those that keep the limits, the front, and what was simulated."""
    every = points(book)
    least = 1e3 / found.goodput["tpot"] if "tpot" in found.goodput else 0.0
    late = found.goodput.get("ttft", np.inf) / 1e3
    kept = (every.per_user >= least) & (every.ttft <= late)
    if "e2el" in found.goodput:
        kept &= every.ttft + (book.traffic.output_len - 1) / every.per_user <= found.goodput["e2el"] / 1e3
    split = every.second >= 0
    title = f"{found.winner.label} gives most" if found.winner is not None else "No plan keeps the limits"
    if found.winner is not None:
        f = found.winner.simulated or found.winner.priced
        title = (
            f"{found.winner.label}: {f.output_throughput_per_gpu:,.0f} tokens/s per GPU at "
            f"{f.output_throughput_per_user:,.0f} tokens/s for a user"
        )
    figure = page(9.6, 5.6, title, header(found))
    axes = figure.add_axes((0.085, 0.115, 0.89, 0.72))
    if least:
        axes.axvspan(least, every.per_user.max() * 1.5, color=tint(GREEN, 0.1), linewidth=0, zorder=0)
        axes.text(
            least,
            0.985,
            f" tpot ≤ {found.goodput['tpot']:g} ms",
            transform=axes.get_xaxis_transform(),
            fontsize=8.5,
            color=GREEN,
            va="top",
        )
    axes.scatter(
        every.per_user[~kept],
        every.per_gpu[~kept],
        s=5,
        color=SILVER,
        linewidth=0,
        rasterized=True,
        label="misses a limit",
    )
    kinds = ((kept & ~split, BLUE, "one kind of server"), (kept & split, ORANGE, "pools that read and answer"))
    for mask, color, label in kinds:
        if mask.any():
            axes.scatter(
                every.per_user[mask],
                every.per_gpu[mask],
                s=7,
                color=tint(color, 0.7),
                linewidth=0,
                rasterized=True,
                label=label,
            )
    line = pareto_front(every.per_user, every.per_gpu)
    axes.plot(every.per_user[line], every.per_gpu[line], color=INK, linewidth=1.1, label="Pareto front", zorder=4)
    _simulated(axes, found)
    axes.set_xscale("log")
    axes.set_xlabel("output tokens/s for one user (1 / TPOT)", fontsize=9.5)
    axes.set_ylabel("output tokens/s per GPU", fontsize=9.5)
    axes.set_ylim(0, float(every.per_gpu.max()) * 1.1)
    axes.set_xlim(float(every.per_user.min()) * 0.92, float(every.per_user.max()) * 1.5)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.xaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "25" else "")
    axes.tick_params(which="both", labelsize=8.5, colors=MUTED)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    legend = axes.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none", fontsize=8.5)
    for handle in legend.legend_handles:
        if hasattr(handle, "set_sizes"):
            handle.set_sizes([90 if handle.get_label().startswith("the winner") else 22])
    _named(axes, book, every, line)
    return figure


def _named(axes: Any, book: Book, every: Points, line: np.ndarray) -> None:
    """Some plans of the front by their layout, where there is room."""
    last, before = (0.0, 0.0), ""
    width, height = np.log(every.per_user.max() / every.per_user.min()), float(every.per_gpu.max())
    for n in line.tolist():
        at = (float(np.log(every.per_user[n]) / width), float(every.per_gpu[n]) / height)
        one = book.prices.servers[int(every.first[n])]
        words = f"{one.layout} {one.kind[1]}"
        if every.second[n] >= 0:
            other = book.prices.servers[int(every.second[n])].layout
            words = f"{every.replicas[n]}×{one.layout}→{every.others[n]}×{other}"
        if abs(at[0] - last[0]) + abs(at[1] - last[1]) < 0.13 or words == before:
            continue
        last, before = at, words
        axes.annotate(
            words,
            (every.per_user[n], every.per_gpu[n]),
            (4, 4),
            textcoords="offset points",
            fontsize=7.5,
            color=MUTED,
            zorder=5,
        )


def _simulated(axes: Any, found: Search) -> None:
    """Plans that hold in the simulation, the winner as a star."""
    for plan in found.plans:
        if plan.simulated is None or plan.verdict not in ("wins", "holds"):
            continue
        wins = plan.verdict == "wins"
        at = (plan.simulated.output_throughput_per_user, plan.simulated.output_throughput_per_gpu)
        axes.scatter(
            *at,
            s=190 if wins else 38,
            marker="*" if wins else "o",
            color=VERMILLION if wins else SKY,
            edgecolor="white",
            linewidth=0.8,
            zorder=6,
            label="the winner, simulated" if wins else None,
        )
