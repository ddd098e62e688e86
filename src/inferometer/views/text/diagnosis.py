"""Why a server is not as predicted, and how far its steps are from the formulas, on a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...base.units import percent, plural, seconds
from ...specs.structs import Calibration
from ...validation.doctor import Diagnosis
from ...validation.fit_steps import StepClass
from .document import Column, Page, Paragraph, Part, TextTable

STEPS = {
    "decode": "decode",
    "eager": "decode, no CUDA graph",
    "prefill": "prompts",
    "mixed": "prompts and decode",
}
FIGURES = {"prefill": "prompts", "decode": "decode", "mixed": "mixed", "eager": "no CUDA graph", "host": "host"}
CAUSES = {  # Cause.name, in words
    "eager": "no CUDA graphs",
    "host": "a slow host",
    "clocks": "low clocks",
    "scheduling": "synchronous scheduling",
    "kv_cache": "a small KV cache",
    "token_budget": "a small token budget",
    "sequences": "few sequences at once",
    "front_end": "queueing before the engine",
    "prefix_cache": "prefix cache misses",
}


def step_page(
    header: str, kind: str, classes: Mapping[str, StepClass], made: Calibration | None, warnings: Sequence[str]
) -> Page:
    """How far predicted steps are off by class, and what a calibration makes of it."""
    parts: list[Part] = [Paragraph(header, style="bold")] if header else []
    count, spent = sum(one.steps for one in classes.values()), sum(one.seconds for one in classes.values())
    parts.append(Paragraph(f"{plural(count, 'step')} of {kind}, {seconds(spent)}"))
    parts.append(_step_table(classes, made is not None))
    if made is not None:
        factors = [f"{word} × {value:.3f}" for name, word in FIGURES.items() if (value := getattr(made, name)) != 1.0]
        parts.append(Paragraph(f"calibration: {', '.join(factors) or 'nothing is corrected'}", style="bold"))
        parts += [Paragraph(f"{STEPS[name]}: {one.note}", style="dim") for name, one in classes.items() if one.note]
    return Page([*parts, *(Paragraph(f"! {warning}", style="yellow") for warning in warnings)])


def _step_table(classes: Mapping[str, StepClass], calibrated: bool) -> TextTable:
    later = [Column("later steps, before", priority=1), Column("calibrated")] if calibrated else []
    table = TextTable(
        [
            Column("steps", "<", name="kind of step", folds=True),
            Column("count"),
            Column("host-bound", priority=2),
            Column("mean error", style="bold"),
            Column("bias", priority=1),
            *later,
        ],
        elsewhere="--json",
    )
    for name, one in classes.items():
        more = [percent(value) if value is not None else "–" for value in (one.unseen_before, one.unseen)]
        table.add_row(
            STEPS[name],
            f"{one.steps:,}",
            percent(one.host_bound),
            percent(one.before),
            f"{one.bias * 100:+.1f}%",
            *(more if calibrated else ()),
        )
    return table


def diagnosis_page(made: Diagnosis) -> Page:
    """The verdict, each cause with its share and evidence, and what is left over."""
    off = [Paragraph(_off(metric, error, made.tolerance[metric])) for metric, error in made.errors.items()]
    near = all(abs(error) <= made.tolerance[metric] for metric, error in made.errors.items())
    if made.healthy:
        verdict = Paragraph("✓ healthy: as near to the prediction as measured servers usually are", style="bold green")
        return Page([verdict, *off, *_step_times(made), *_left(made), *_notes(made)])
    if not made.causes:
        verdict = Paragraph(
            f"✗ not as predicted, and none of {plural(len(made.tried), 'cause')} explains it", style="bold yellow"
        )
        tried = Paragraph(f"tried: {', '.join(CAUSES.get(name, name) for name in made.tried)}", style="dim")
        return Page([verdict, *off, tried, *_step_times(made), *_ruled_out(made), *_notes(made)])
    first = made.causes[0].title
    verdict = (
        Paragraph(f"! mean latencies are as predicted, but: {first}", style="bold yellow")
        if near
        else Paragraph(f"✗ not as predicted: {first}", style="bold red")
    )
    table = TextTable([Column("cause", "<", folds=True), Column("share of the gap", style="bold")], elsewhere="--json")
    for cause in made.causes:
        table.add_row(cause.title, percent(cause.share))
    table.add_row("unexplained", percent(made.unexplained))
    parts: list[Part] = [verdict, *off, table]
    for cause in made.causes:
        parts.append(Paragraph(cause.title, style="bold"))
        parts += [Paragraph(f"· {sentence}") for sentence in cause.evidence]
        parts += [Paragraph(f"explains about as much: {title}", style="dim") for title in cause.alike]
        parts += [Paragraph(f"→ {cause.remedy}", style="green")] if cause.remedy else []
    return Page([*parts, *_step_times(made), *_ruled_out(made), *_notes(made)])


def _off(metric: str, error: float, tolerance: float) -> str:
    """``_off("ttft", -0.2, 0.1)  # 'mean TTFT is predicted 20.0% too short; up to 10.0% is usual'``"""
    side = "short" if error < 0 else "long"
    return f"mean {metric.upper()} is predicted {percent(abs(error))} too {side}; up to {percent(tolerance)} is usual"


def _left(made: Diagnosis) -> list[Part]:
    """Why a server is healthy whose means are off by more than usual: its step times are off by no more."""
    if all(abs(error) <= made.tolerance[metric] for metric, error in made.errors.items()):
        return []
    left = [
        f"mean {metric.upper()} {percent(abs(error))} too {'short' if error < 0 else 'long'}"
        for metric, error in made.left.items()
    ]
    return [Paragraph(f"with step times so, it predicts {', '.join(left)}", style="dim")] if left else []


def _notes(made: Diagnosis) -> list[Part]:
    return [Paragraph(f"! {note}", style="yellow") for note in made.notes]


def _ruled_out(made: Diagnosis) -> list[Part]:
    return [
        Paragraph(f"ruled out: {CAUSES.get(name, name)} ({why})", style="dim") for name, why in made.ruled_out.items()
    ]


def _step_times(made: Diagnosis) -> list[Part]:
    """What was allowed for, because step times are usually off by as much."""
    shown = [
        f"{FIGURES[name]} {math.expm1(error) * 100:+.0f}%" if name in FIGURES else f"{seconds(error)} a request more"
        for name, error in made.step_times.items()
    ]
    return (
        [Paragraph(f"assumed within the usual error of step times: {', '.join(shown)}", style="dim")] if shown else []
    )
