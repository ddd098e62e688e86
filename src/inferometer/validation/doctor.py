"""Why a server is not as predicted: each cause is put into the same simulation, and what it explains is measured.

diagnosis = diagnose(replay, before, plan_facts, server)
diagnosis.causes[0].name, diagnosis.causes[0].share       # 'eager', 0.93: 93% of the gap

A cause is a change of the simulation's arguments with a level: no CUDA graphs; a host so many times slower; a KV cache
of so many blocks. The gap is the distance between what was measured and what is predicted: of TTFT and TPOT of every
request, and of their distributions (of the figures of a run, where a file has no requests). What step times that are
off by their usual error explain is no gap, with a cause as without one: see `latency_gap`. The cause and the level that
leave the smallest gap are taken, then the next one on top of it, as long as each closes a good part. So shares add up
to the whole: what is left over is unexplained. A server's own counters rule out what they contradict, and show a limit
that is smaller than the plan's even where latency hardly feels it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import InferometerError
from ..base.units import milliseconds, percent, plural
from ..serving.metrics import metrics
from ..serving.metrics_page import ServerStatistics
from ..specs.structs import Calibration
from .causes import CauseKind, cause_kinds, merged
from .latency_gap import CALIBRATED, FIGURES, Change, Replay, StepErrors, as_change, gap, latency_logs
from .validate import Validation

MOST_CAUSES = 3
LEAST_SHARE = 0.4  # of what is left that a cause must close
LEAST_GAP = 0.02  # mean distance, as a logarithm, that it must close
REFINED = 4  # levels that are tried between the best one and its neighbours, of the causes that are nearest
NEAREST = 4  # causes whose levels are refined, and whose step times are simulated again
ALIKE, ALIKE_GAP = 0.15, 0.01  # by which gaps of two causes differ that latency cannot tell apart
USUAL_ERROR = {"ttft": 0.15, "tpot": 0.07}  # where no band of measured runs is known


class Cause(msgspec.Struct, kw_only=True):
    """One cause, at the level that fits best."""

    name: str  # eager, host, clocks, kv_cache, token_budget, sequences, prefix_cache, front_end, scheduling
    title: str  # with its level
    share: float  # of the gap that it closes, on top of the causes before it
    change: dict[str, Any]  # arguments of `simulate` that make it
    level: float  # a factor, a share, tokens, blocks, sequences or seconds, by cause
    evidence: list[str]  # sentences with figures
    remedy: str = ""  # what to look at first
    alike: list[str] = []  # titles of other causes that explain about as much


class Diagnosis(msgspec.Struct, kw_only=True):
    """What was concluded, and from what."""

    healthy: bool  # no cause is named, and what step times within their usual error leave is within `tolerance`
    gap: float  # mean distance of measured from predicted, as a logarithm: 0.1 is about 10%
    causes: list[Cause]  # the one that explains most first
    unexplained: float  # share of the gap
    tolerance: dict[str, float]  # metric -> error of the mean up to which a server is as predicted
    errors: dict[str, float]  # metric -> error of the predicted mean
    signatures: dict[str, float]  # what was measured over what is predicted: short prompts' TTFT …
    tried: list[str]  # causes that were put into the simulation
    ruled_out: dict[str, str] = {}  # cause -> which counter contradicts it
    step_times: dict[str, float] = {}  # usual errors that fit best: logarithms of prefill, decode, host; request in s


class TriedCause(NamedTuple):
    """A cause at a level, simulated; the first has none."""

    kind: CauseKind | None
    level: float
    change: Change  # of all causes so far, without `errors`
    errors: dict[str, float]  # of step times, within their usual error
    validation: Validation
    gap: float
    alike: tuple[str, ...] = ()  # other causes that leave about as small a gap


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
    kinds = cause_kinds(before, model, gpu, plan, server)
    doctor = _Doctor(replay, before, CALIBRATED if plan.get("calibration") is not None else 1.0)
    first = doctor.settled(TriedCause(None, 1.0, Change(), {}, before, 0.0))
    open_kinds = [kind for kind in kinds if not kind.contradicted]
    chosen = [first]
    for kind in open_kinds:
        if kind.shown is not None and len(chosen) <= MOST_CAUSES:
            trial = doctor.tried(chosen[-1], kind, kind.shown.level)
            chosen += [doctor.settled(trial)] if trial is not None else []
    while len(chosen) <= MOST_CAUSES and chosen[-1].gap > LEAST_GAP:
        named = {trial.kind.name for trial in chosen if trial.kind is not None}
        best = doctor.best(chosen[-1], [kind for kind in open_kinds if kind.name not in named])
        if best is None or chosen[-1].gap - best.gap < max(LEAST_SHARE * chosen[-1].gap, LEAST_GAP):
            break
        chosen.append(best)
    whole = max(first.gap, 1e-9)
    last = chosen[-1]
    left = mean_errors(last.validation)
    near = all(abs(error) <= limits.get(metric, math.inf) for metric, error in left.items())
    return Diagnosis(
        healthy=len(chosen) == 1 and near,
        gap=first.gap,
        causes=[
            _as_cause(trial, previous, (previous.gap - trial.gap) / whole, server)
            for previous, trial in pairwise(chosen)
        ],
        unexplained=last.gap / whole if first.gap else 1.0,
        tolerance=dict(limits),
        errors=mean_errors(before),
        signatures=signatures(before, before),
        tried=[kind.name for kind in open_kinds],
        ruled_out={kind.name: kind.contradicted for kind in kinds if kind.contradicted},
        step_times={name: error for name, error in last.errors.items() if error},
    )


# ------------------------------------------------------------------ errors of means, signatures


def mean_errors(validation: Validation) -> dict[str, float]:
    """Relative error of the predicted mean of TTFT and TPOT; a positive one is too slow."""
    errors = {}
    for metric in ("ttft", "tpot"):
        figure, one = validation.figures.get(f"mean_{metric}_ms"), validation.errors.get(metric)
        error = one.mean_error if one is not None else figure.error if figure is not None else None
        if error is not None:
            errors[metric] = float(error)
    return errors


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


class _Doctor:
    """Tries causes at levels, each with the step times that suit it best."""

    def __init__(self, replay: Replay, before: Validation, share: float) -> None:
        self.replay, self.before = replay, before
        self.step_errors = StepErrors(replay, before, share)

    def best(self, so_far: TriedCause, kinds: Sequence[CauseKind]) -> TriedCause | None:
        """The cause and the level that leave the smallest gap: few levels of all, then levels between of the nearest.

        At first the effects of step times are added; those of the nearest causes are simulated.
        """
        trials: list[list[TriedCause]] = []
        for kind in kinds:
            runs = [run for level in kind.levels if (run := self.tried(so_far, kind, level)) is not None]
            trials += [runs] if runs else []
        nearest = sorted(trials, key=lambda runs: min(run.gap for run in runs))[:NEAREST]
        for runs in nearest:
            for _ in range(REFINED):
                level = _next_level(runs)
                refined = self.tried(so_far, _kind(runs[0]), level) if level is not None else None
                if refined is None:
                    break
                runs.append(refined)
        settled = [self.settled(min(runs, key=lambda run: run.gap)) for runs in nearest]
        if not settled:
            return None
        least = min(run.gap for run in settled)
        alike = [run for run in settled if run.gap <= least + max(ALIKE * least, ALIKE_GAP)]
        first = min(alike, key=lambda run: kinds.index(_kind(run)))
        return first._replace(alike=tuple(_kind(run).title(run.level) for run in alike if run is not first))

    def tried(self, so_far: TriedCause, kind: CauseKind, level: float) -> TriedCause | None:
        """A cause at a level, on top of others; None where the engine refuses it."""
        change = merged(so_far.change, kind.change(level))
        try:
            validation = self.replay(change)
        except InferometerError:
            return None
        errors, left = self.step_errors.fit(latency_logs(self.before, validation))
        return TriedCause(kind, level, change, errors, validation, left)

    def settled(self, trial: TriedCause) -> TriedCause:
        """The same with its step times simulated, not added up; as it was where that is no better."""
        plain = latency_logs(self.before, trial.validation)
        best = trial._replace(errors={}, gap=gap(plain))
        errors, _ = self.step_errors.fit(plain)
        for _ in range(2):
            if errors == best.errors or not as_change(errors):
                break
            validation = self.replay(merged(trial.change, as_change(errors)))
            logs = latency_logs(self.before, validation)
            if (left := gap(logs)) >= best.gap:
                break
            best = trial._replace(errors=errors, validation=validation, gap=left)
            errors, _ = self.step_errors.fit(logs, errors)
        return best


def _kind(trial: TriedCause) -> CauseKind:
    assert trial.kind is not None
    return trial.kind


def _next_level(runs: Sequence[TriedCause]) -> float | None:
    """Between the best level and the better of its neighbours, as a logarithm; beyond it where it is the lowest."""
    ordered, kind = sorted(runs, key=lambda run: run.level), _kind(runs[0])
    if len(kind.levels) < 2:
        return None
    at = min(range(len(ordered)), key=lambda k: ordered[k].gap)
    best = ordered[at].level
    sides = [ordered[k] for k in (at - 1, at + 1) if 0 <= k < len(ordered)]
    levels = [math.sqrt(best * min(sides, key=lambda run: run.gap).level)] if sides else []
    if at == 0 and len(ordered) > 1 and kind.unit:
        levels.insert(0, best * best / ordered[1].level)
    candidates = [kind.rounded(level) for level in levels]
    return next((x for x in candidates if all(abs(math.log(x / run.level)) > 0.01 for run in runs)), None)


# ------------------------------------------------------------------ evidence


def _as_cause(run: TriedCause, before: TriedCause, share: float, server: ServerStatistics | None) -> Cause:
    kind = _kind(run)
    own = kind.change(run.level)
    change = {name: msgspec.to_builtins(value) for name, value in own.items()}
    if "calibration" in own:
        made, plain = own["calibration"], Calibration()
        change = {
            name: getattr(made, name) for name in ("host", "request") if getattr(made, name) != getattr(plain, name)
        }
    shown = [kind.shown.sentence] if kind.shown is not None else []
    return Cause(
        name=kind.name,
        title=kind.title(run.level),
        share=share,
        change=change,
        level=run.level,
        evidence=[*shown, *_moved(before.validation, run.validation), *_counted(kind, run.validation, server)],
        remedy=kind.remedy,
        alike=list(run.alike),
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


def _counted(kind: CauseKind, validation: Validation, server: ServerStatistics | None) -> list[str]:
    """What the server's counters, or the simulation's, say of this cause."""
    outcome, sentences = validation.outcome, []
    if kind.name == "kv_cache":
        simulated = int(outcome.preemptions.sum())
        sentences.append(f"such a cache preempts {plural(simulated, 'time')} in the simulation")
        if server is not None and server.preemptions >= 0:
            sentences.append(
                f"the server preempted {plural(round(server.preemptions), 'time')}, its cache was "
                f"{percent(server.kv_cache_usage)} full"
            )
    if server is not None and kind.name == "token_budget" and math.isfinite(server.largest_step_tokens):
        sentences.append(f"the server's largest step had at most {server.largest_step_tokens:,.0f} tokens")
    if server is not None and kind.name in ("sequences", "kv_cache") and math.isfinite(server.queue_ms):
        sentences.append(
            f"requests waited {milliseconds(server.queue_ms)} in its queue; {server.waiting:.0f} waited when read"
        )
    if kind.name == "prefix_cache" and server is not None and math.isfinite(server.prefix_cache_hit_rate):
        sentences.append(f"the server hit {percent(server.prefix_cache_hit_rate)}")
    if kind.name in ("eager", "host", "scheduling", "token_budget"):
        sentences.append(f"p99 ITL becomes {milliseconds(metrics(outcome)['p99_itl_ms'])} in the simulation")
    return sentences
