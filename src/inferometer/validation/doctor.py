"""Why a server is not as predicted: each cause is put into the same simulation, and what it explains is measured.

diagnosis = diagnose(replay, before, plan_facts, server)
diagnosis.causes[0].name, diagnosis.causes[0].share       # 'eager', 0.93: 93% of the gap

A cause is a change of the simulation's arguments with a level: no CUDA graphs; a host so many times slower; a KV cache
of so many blocks. The gap is the distance between what was measured and what is predicted: of TTFT and TPOT of every
request, and of their distributions (of the figures of a run, where a file has no requests). The cause and the level
that leave the smallest gap are taken, then the next one on top of it, as long as each closes a good part. So shares add
up to the whole: what is left over is unexplained. A server's own counters rule out what they contradict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import InferometerError
from ..base.units import milliseconds, percent, plural
from ..serving.metrics import metrics
from ..serving.metrics_page import ServerStatistics
from ..specs.structs import Calibration
from .causes import CauseKind, Change, cause_kinds, merged
from .validate import Validation

Replay = Callable[[Change], Validation]
MOST_CAUSES = 3
LEAST_SHARE = 0.15  # of the gap that a cause must close
LEAST_GAP = 0.02  # mean distance, as a logarithm, that it must close
REFINED = 4  # levels that are tried between the best one and its neighbours, of the causes that are nearest
NEAREST = 2  # causes whose levels are refined
USUAL_ERROR = {"ttft": 0.15, "tpot": 0.07}  # where no band of measured runs is known
FIGURES: tuple[str, ...] = (
    *("mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "median_tpot_ms"),
    *("mean_itl_ms", "p99_itl_ms", "mean_e2el_ms"),
)
_CAP = 1.5  # of a logarithm: what is further off counts no more


class Cause(msgspec.Struct, kw_only=True):
    """One cause, at the level that fits best."""

    name: str  # eager, host, clocks, kv_cache, token_budget, sequences, prefix_cache, front_end, scheduling
    title: str  # in words, with its level
    share: float  # of the gap that it closes, on top of the causes before it
    change: dict[str, Any]  # arguments of `simulate` that make it
    level: float  # a factor, a share, tokens, blocks, sequences or seconds, by cause
    evidence: list[str]  # sentences with figures
    remedy: str = ""  # what to look at first


class Diagnosis(msgspec.Struct, kw_only=True):
    """What was concluded, and from what."""

    healthy: bool  # the errors of the means are within `tolerance`
    gap: float  # mean distance of measured from predicted, as a logarithm: 0.1 is about 10%
    causes: list[Cause]  # the one that explains most first
    unexplained: float  # share of the gap
    tolerance: dict[str, float]  # metric -> error of the mean up to which a server is as predicted
    errors: dict[str, float]  # metric -> error of the predicted mean
    signatures: dict[str, float]  # what was measured over what is predicted: short prompts' TTFT …
    tried: list[str]  # causes that were put into the simulation
    ruled_out: dict[str, str] = {}  # cause -> which counter contradicts it


class Tried(NamedTuple):
    """A cause at a level, simulated."""

    kind: CauseKind
    level: float
    change: Change
    validation: Validation
    gap: float


def diagnose(
    replay: Replay,
    before: Validation,
    model: str,
    gpu: str,
    plan: Mapping[str, Any],
    server: ServerStatistics | None = None,
    tolerance: Mapping[str, float] | None = None,
) -> Diagnosis:
    """What explains the difference between measured and predicted; see the top of this file.

    ``diagnose(lambda change: validate(model, measured=trace, **{**plan, **change}), before, model, "h200", plan)``
    """
    limits = {**USUAL_ERROR, **(tolerance or {})}
    errors = mean_errors(before)
    whole = gap_of(before, before)
    kinds = cause_kinds(before, model, gpu, plan, server)
    ruled_out = {kind.name: kind.contradicted for kind in kinds if kind.contradicted}
    near = all(abs(error) <= limits.get(metric, math.inf) for metric, error in errors.items())
    if near or whole <= LEAST_GAP:
        return Diagnosis(
            healthy=True,
            gap=whole,
            causes=[],
            unexplained=1.0,
            tolerance=dict(limits),
            errors=errors,
            signatures=signatures(before, before),
            tried=[],
            ruled_out=ruled_out,
        )
    open_kinds = [kind for kind in kinds if not kind.contradicted]
    causes: list[Cause] = []
    left, change, now = whole, Change(), before
    least = max(LEAST_SHARE * whole, LEAST_GAP)
    while len(causes) < MOST_CAUSES and left > least:
        best = _best(replay, before, change, [k for k in open_kinds if k.name not in {c.name for c in causes}], left)
        if best is None or left - best.gap < least:
            break
        causes.append(_as_cause(best, now, (left - best.gap) / whole, server))
        left, change, now = best.gap, merged(change, best.change), best.validation
    return Diagnosis(
        healthy=False,
        gap=whole,
        causes=causes,
        unexplained=left / whole,
        tolerance=dict(limits),
        errors=errors,
        signatures=signatures(before, before),
        tried=[kind.name for kind in open_kinds],
        ruled_out=ruled_out,
    )


# ------------------------------------------------------------------ the gap


def mean_errors(validation: Validation) -> dict[str, float]:
    """Relative error of the predicted mean of TTFT and TPOT; a positive one is too slow."""
    errors = {}
    for metric in ("ttft", "tpot"):
        figure, one = validation.figures.get(f"mean_{metric}_ms"), validation.errors.get(metric)
        error = one.mean_error if one is not None else figure.error if figure is not None else None
        if error is not None:
            errors[metric] = float(error)
    return errors


def gap_of(before: Validation, now: Validation) -> float:
    """Mean distance of measured from predicted, as a logarithm, of requests, distributions and figures of the run."""
    parts = []
    for metric in ("ttft", "tpot"):
        if metric in before.measured:
            measured, predicted = before.measured[metric], now.predicted[metric]
            both = np.isfinite(measured) & np.isfinite(predicted) & (measured > 0) & (predicted > 0)
            if both.any():
                pair = np.log(predicted[both]), np.log(measured[both])
                shares = np.linspace(0.05, 0.95, 10)
                parts += [_distance(*pair), _distance(*(np.quantile(side, shares) for side in pair))]
            lost = np.isfinite(measured) & ~np.isfinite(predicted)
            parts += [_CAP] if lost.mean() > 0.5 else []
    figures = [
        _distance(np.log(ours), np.log(seen.measured))
        for name in FIGURES
        if (seen := before.figures.get(name)) is not None
        and seen.measured > 0
        and (ours := now.figures[name].predicted if name in now.figures else 0.0) > 0
    ]
    parts += [float(np.mean(figures))] if figures else []
    return float(np.mean(parts)) if parts else 0.0


def _distance(a: Any, b: Any) -> float:
    return float(np.minimum(np.abs(a - b), _CAP).mean())


def signatures(before: Validation, now: Validation) -> dict[str, float]:
    """Measured over predicted of parts of the run: ``{"ttft_short_prompts": 1.1, "ttft_long_prompts": 1.9, …}``"""
    ratios: dict[str, float] = {}
    lengths = before.trace.input_tokens.astype(float)
    loads = now.predicted.get("tpot", lengths)  # where many decode at once, a token takes longest
    for metric, by, names in (
        ("ttft", lengths, ("short_prompts", "long_prompts")),
        ("tpot", loads, ("quiet", "busy")),
    ):
        if metric not in before.measured:
            continue
        known = np.isfinite(before.measured[metric]) & np.isfinite(now.predicted[metric]) & np.isfinite(by)
        if known.sum() < 6:
            continue
        low, high = np.quantile(by[known], (1 / 3, 2 / 3))
        for name, part in zip(names, (known & (by <= low), known & (by >= high)), strict=True):
            ratios[f"{metric}_{name}"] = float(
                before.measured[metric][part].mean() / now.predicted[metric][part].mean()
            )
    for name in FIGURES:
        figure = now.figures.get(name)
        if figure is not None and figure.predicted > 0 and name not in ratios:
            ratios[name] = before.figures[name].measured / figure.predicted
    return ratios


# ------------------------------------------------------------------ causes and levels


def _best(replay: Replay, before: Validation, change: Change, kinds: Sequence[CauseKind], left: float) -> Tried | None:
    """The cause and the level that leave the smallest gap: few levels of all, then levels between of the nearest."""
    tried: dict[str, list[Tried]] = {}
    for kind in kinds:
        runs = [run for level in kind.levels if (run := _run(replay, before, change, kind, level)) is not None]
        if runs:
            tried[kind.name] = runs
    nearest = sorted(tried.values(), key=lambda runs: min(run.gap for run in runs))[:NEAREST]
    for runs in nearest:
        kind = runs[0].kind
        if min(run.gap for run in runs) >= left or len(kind.levels) < 2:
            continue
        for _ in range(REFINED):
            level = _between(runs)
            refined = _run(replay, before, change, kind, level) if level is not None else None
            if refined is None:
                break
            runs.append(refined)
    every = [run for runs in tried.values() for run in runs]
    return min(every, key=lambda run: run.gap, default=None)


def _between(runs: Sequence[Tried]) -> float | None:
    """The middle, as a logarithm, between the best level and the better of its neighbours."""
    ordered = sorted(runs, key=lambda run: run.level)
    at = min(range(len(ordered)), key=lambda k: ordered[k].gap)
    sides = [ordered[k] for k in (at - 1, at + 1) if 0 <= k < len(ordered)]
    if not sides:
        return None
    level = math.sqrt(ordered[at].level * min(sides, key=lambda run: run.gap).level)
    return level if all(abs(math.log(level / run.level)) > 0.01 for run in runs) else None


def _run(replay: Replay, before: Validation, change: Change, kind: CauseKind, level: float) -> Tried | None:
    """A cause at a level, on top of a change; None where the engine refuses it."""
    own = kind.change(level)
    try:
        validation = replay(merged(change, own))
    except InferometerError:
        return None
    return Tried(kind, level, own, validation, gap_of(before, validation))


# ------------------------------------------------------------------ evidence


def _as_cause(run: Tried, now: Validation, share: float, server: ServerStatistics | None) -> Cause:
    change = {name: msgspec.to_builtins(value) for name, value in run.change.items()}
    if "calibration" in run.change:
        made, plain = run.change["calibration"], Calibration()
        change = {
            name: getattr(made, name) for name in ("host", "request") if getattr(made, name) != getattr(plain, name)
        }
    return Cause(
        name=run.kind.name,
        title=run.kind.title(run.level),
        share=share,
        change=change,
        level=run.level,
        evidence=[*_moved(now, run.validation), *_counted(run, server)],
        remedy=run.kind.remedy,
    )


def _moved(now: Validation, then: Validation) -> list[str]:
    """How each metric's mean comes nearer to what was measured."""
    sentences = []
    for metric, label in (("ttft", "TTFT"), ("tpot", "TPOT")):
        key = f"mean_{metric}_ms"
        if metric in now.errors and now.errors[metric].measured_mean_ms is not None:
            triple = [
                now.errors[metric].predicted_mean_ms,
                then.errors[metric].predicted_mean_ms,
                now.errors[metric].measured_mean_ms,
            ]
        elif key in now.figures and key in then.figures:
            triple = [now.figures[key].predicted, then.figures[key].predicted, now.figures[key].measured]
        else:
            continue
        was, becomes, seen = map(milliseconds, triple)
        sentences.append(f"mean {label} {was} → {becomes} in the simulation; measured {seen}")
    ratios = signatures(now, now)
    for names, text in (
        (
            ("ttft_short_prompts", "ttft_long_prompts"),
            "measured TTFT is {:.2f} times the prediction for the shortest third of prompts, {:.2f} for the longest",
        ),
        (
            ("tpot_quiet", "tpot_busy"),
            "measured TPOT is {:.2f} times the prediction in the quietest third, {:.2f} in the busiest",
        ),
    ):
        if all(name in ratios for name in names):
            sentences.append(text.format(*(ratios[name] for name in names)))
    return sentences


def _counted(run: Tried, server: ServerStatistics | None) -> list[str]:
    """What the server's counters, or the simulation's, say of this cause."""
    outcome, sentences = run.validation.outcome, []
    if run.kind.name == "kv_cache":
        simulated = int(outcome.preemptions.sum())
        sentences.append(f"such a cache preempts {plural(simulated, 'time')} in the simulation")
        if server is not None and server.preemptions >= 0:
            sentences.append(
                f"the server preempted {plural(round(server.preemptions), 'time')}, its cache was "
                f"{percent(server.kv_cache_usage)} full"
            )
    if server is not None and run.kind.name == "token_budget" and math.isfinite(server.largest_step_tokens):
        sentences.append(f"the server's largest step had at most {server.largest_step_tokens:,.0f} tokens")
    if server is not None and run.kind.name in ("sequences", "kv_cache") and math.isfinite(server.queue_ms):
        sentences.append(
            f"requests waited {milliseconds(server.queue_ms)} in its queue; {server.waiting:.0f} waited when read"
        )
    if run.kind.name == "prefix_cache" and server is not None and math.isfinite(server.prefix_cache_hit_rate):
        sentences.append(f"the server hit {percent(server.prefix_cache_hit_rate)}")
    if run.kind.name in ("eager", "host", "scheduling", "token_budget"):
        sentences.append(f"p99 ITL becomes {milliseconds(metrics(outcome)['p99_itl_ms'])} in the simulation")
    return sentences
