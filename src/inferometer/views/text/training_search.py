"""The result of a training search for people: the winner and why, the next ones, memory against speed, commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...base.result import kept
from ...base.units import money, percent, plural, seconds, size
from ...search.training_search_result import LayoutRow, TrainingPlan, TrainingSearch
from .. import files
from ..plots.canvas import page, picture, style
from ..plots.palette import BLUE, GRID, INK, MUTED, VERMILLION, tint
from .document import Cell, Column, Page, Paragraph, Part, ShellCommand, TextTable
from .training import PARTS

FRONT = 12  # points of the front that are shown
SHARE = 0.005  # of a step, from which on a part of it is named


def shown(result: TrainingSearch, timed: bool = True) -> Page:
    """What people read of a training search; a notebook shows no seconds of its own, which differ from run to run."""
    parts: list[Part] = [Paragraph(header(result), style="bold"), Paragraph("")]
    if result.winner is not None:
        parts.append(Paragraph(f"▶ {result.winner.label}", style="bold green"))
        parts += [Paragraph(f"  {sentence}") for sentence in result.why]
        parts += [Paragraph(f"  {_parts(result)}"), Paragraph(""), _plans(result.plans, result)]
        if len(result.front) > 1:
            parts.append(Paragraph("Pareto front: no layout is faster in as little memory", style="bold"))
            parts.append(_plans(_spread(result.front), result))
    else:
        parts.append(Paragraph(f"✗ {result.reason}", style="bold red"))
    if result.relaxations:
        parts += [Paragraph("Changes that would work (each was tried):", style="bold")]
        parts += [Paragraph(f"  {one.change}  →  {one.plan}", style="green") for one in result.relaxations]
    parts += [Paragraph(line, style="dim") for line in _accounting(result, timed)]
    for name, lines in (("Megatron-LM", "megatron-lm"), ("Operator by operator", "inferometer")):
        if result.commands.get(lines):
            parts += [Paragraph(""), Paragraph(name, style="bold")]
            parts += [ShellCommand(line) for line in result.commands[lines]]
    parts += [Paragraph(f"! {warning}", style="yellow") for warning in result.warnings]
    return Page(parts)


def header(result: TrainingSearch) -> str:
    """``llama-3.1-70b · 1,024 × h100-sxm · bf16 · 1,024 sequences of 8,192 tokens``"""
    step = f"{plural(result.global_batch_size, 'sequence')} of {result.seq_len:,} tokens"
    return f"{result.model} · {result.num_gpus:,} × {result.gpu} · {result.precision} · {step}"


def _parts(result: TrainingSearch) -> str:
    """Where the winner's step goes: ``forward 24.1%, backward 50.2%, pipeline bubble 3.1%``"""
    total = sum(result.breakdown.values())
    shares = sorted(((took / total, name) for name, took in result.breakdown.items()), reverse=True)
    return ", ".join(f"{PARTS[name]} {percent(share)}" for share, name in shares if share >= SHARE)


def _spread(plans: list[TrainingPlan]) -> list[TrainingPlan]:
    """Some of a long front, its ends among them."""
    if len(plans) <= FRONT:
        return plans
    return [plans[round(i * (len(plans) - 1) / (FRONT - 1))] for i in range(FRONT)]


def _plans(plans: list[TrainingPlan], result: TrainingSearch) -> TextTable:
    has_run = any(plan.days is not None for plan in plans)
    table = TextTable(
        [
            Column("layout", "<", folds=True),
            Column("step"),
            Column("tok/s/GPU", priority=1),
            Column("MFU", priority=2),
            Column("memory"),
            Column("slower", priority=3),
            *([Column("days", priority=2), Column("cost", priority=4)] if has_run else []),
        ],
        elsewhere="--json",
    )
    best = result.winner or plans[0]
    for plan in plans:
        slower = plan.step_seconds / best.step_seconds - 1
        cost = "–" if plan.cost is None else money(plan.cost)
        table.add_row(
            Cell(plan.label, "bold green" if plan.label == best.label else ""),
            seconds(plan.step_seconds),
            f"{plan.tokens_per_second_per_gpu:,.0f}",
            percent(plan.model_flops_utilization),
            size(plan.memory_bytes),
            "" if plan.label == best.label else percent(slower),
            *([f"{plan.days or 0:,.1f}", cost] if has_run else []),
        )
    return table


def _accounting(result: TrainingSearch, timed: bool) -> list[str]:
    """How many layouts there are, what became of them, and how long that took."""
    c, took = result.counts, f" in {seconds(result.seconds['total'])}" if timed and "total" in result.seconds else ""
    lines = [
        f"{plural(c['layouts'], 'layout')}: {c['layouts_illegal']:,} illegal, {c['layouts_too_large']:,} too large, "
        f"{c['layouts_slower']:,} slower by their bounds, {c['layouts_estimated']:,} estimated{took}"
    ]
    if result.rejections:
        ruled_out = (f"{reason} ({count:,})" for reason, count in list(result.rejections.items())[:6])
        lines.append(f"layouts ruled out: {', '.join(ruled_out)}")
    return lines


# ------------------------------------------------------------------ the front


def write_front(result: TrainingSearch, folder: str | Path) -> list[Path]:
    """``pareto.png``: speed against memory."""
    target = files.folder(folder)
    with style():
        return [files.write(target / "pareto.png", picture(pareto(result)))]


def pareto(result: TrainingSearch) -> Any:
    """Tokens/s per GPU over memory: the layouts that were estimated, those that none beats in both, and the winner."""
    best = result.winner
    title = (
        "No layout fits" if best is None else f"{best.label}: {best.tokens_per_second_per_gpu:,.0f} tokens/s per GPU"
    )
    figure = page(9.6, 5.6, title, header(result))
    axes = figure.add_axes((0.085, 0.115, 0.89, 0.72))
    rows: list[LayoutRow] = [row for row in kept(result, "layouts") or [] if row.memory_bytes is not None]
    memory = [(row.memory_bytes or 0.0) / 1e9 for row in rows]
    rates = [row.tokens_per_second_per_gpu for row in rows]
    dots = {"s": 16, "color": tint(BLUE, 0.6), "linewidth": 0, "label": "estimated"}
    axes.scatter(memory, rates, **dots)
    x = [plan.memory_bytes / 1e9 for plan in result.front]
    y = [plan.tokens_per_second_per_gpu for plan in result.front]
    axes.plot(x, y, color=INK, linewidth=1.1, marker="o", markersize=3, label="Pareto front")
    if best is not None:
        spot = (best.memory_bytes / 1e9, best.tokens_per_second_per_gpu)
        axes.scatter(*spot, s=190, marker="*", color=VERMILLION, edgecolor="white", zorder=6, label="the winner")
    axes.axvline(result.usable_bytes / 1e9, color=MUTED, linewidth=0.9, linestyle="--", label="usable memory")
    axes.set_xlabel("GB on the fullest GPU", fontsize=9.5)
    axes.set_ylabel("tokens/s per GPU", fontsize=9.5)
    axes.set_ylim(0, max([*y, 1.0]) * 1.1)
    axes.set_xlim(0, result.usable_bytes / 1e9 * 1.05)
    axes.tick_params(labelsize=8.5, colors=MUTED)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(loc="lower right", frameon=True, framealpha=0.9, edgecolor="none", fontsize=8.5)
    return figure
