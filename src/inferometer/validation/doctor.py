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

from ..base.errors import BadValue, InferometerError
from ..base.units import milliseconds, percent, plural
from ..serving.metrics import metrics
from ..serving.metrics_page import ServerStatistics
from ..specs.structs import Calibration
from .causes import CauseKind, cause_kinds, merged
from .latency_gap import CALIBRATED, FIGURES, Change, Replay, StepErrors, as_change, comparable, gap, latency_logs
from .validate import Validation

MOST_CAUSES = 3
LEAST_SHARE = 0.4  # of what is left that a cause must close
LEAST_GAP = 0.02  # mean distance, as a logarithm, that it must close
LEAST_GAP_OF_FIGURES = 0.08  # the same where only figures of a run are known: its requests are drawn, and scatter
REFINED = 4  # levels that are tried between the best one and its neighbours, of the causes that are nearest
NEAREST = 4  # causes whose levels are refined, and whose step times are simulated again
ALIKE, ALIKE_GAP = 0.15, 0.01  # by which gaps of two causes differ that latency cannot tell apart
FEW = 6  # requests, fewer than which are hardly evidence
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
    left: dict[str, float] = {}  # metric -> error of the predicted mean with those, and with the causes
    notes: list[str] = []  # what speaks against believing it


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
    if not comparable(latency_logs(before, before)):
        raise BadValue(
            "a diagnosis needs measured TTFT or TPOT of requests that the simulation completes; there are none"
        )
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
    least_gap = LEAST_GAP if before.measured else LEAST_GAP_OF_FIGURES
    while len(chosen) <= MOST_CAUSES and chosen[-1].gap > least_gap:
        named = {trial.kind.name for trial in chosen if trial.kind is not None}
        best = doctor.best(chosen[-1], [kind for kind in open_kinds if kind.name not in named])
        if best is None or chosen[-1].gap - best.gap < max(LEAST_SHARE * chosen[-1].gap, least_gap):
            break
        chosen.append(best)
    whole = max(first.gap, 1e-9)
    last = chosen[-1]
    left = mean_errors(last.validation)
    near = all(abs(error) <= limits.get(metric, math.inf) for metric, error in left.items())
    notes = [*_few_requests(before), *(_faster(mean_errors(before), limits) if len(chosen) == 1 and not near else ())]
    return Diagnosis(
        healthy=len(chosen) == 1 and near,
        gap=first.gap,
        causes=[
            _as_cause(trial, previous, (previous.gap - trial.gap) / whole, server, before)
            for previous, trial in pairwise(chosen)
        ],
        unexplained=last.gap / whole if first.gap else 1.0,
        tolerance=dict(limits),
        errors=mean_errors(before),
        signatures=signatures(before, before),
        tried=[kind.name for kind in open_kinds],
        ruled_out={kind.name: kind.contradicted for kind in kinds if kind.contradicted},
        step_times={name: error for name, error in last.errors.items() if error},
        left=left,
        notes=notes,
    )


def _few_requests(before: Validation) -> list[str]:
    count = max((one.requests for one in before.errors.values()), default=FEW)
    return [f"{plural(count, 'request')} can hardly tell a fault from chance"] if count < FEW else []


def _faster(errors: Mapping[str, float], limits: Mapping[str, float]) -> list[str]:
    """All causes make a server slower."""
    beyond = [error for metric, error in errors.items() if abs(error) > limits[metric]]
    if not beyond or min(beyond) < 0:
        return []
    return [
        "the server is faster than predicted, and every cause makes one slower: is it this model, GPU, precision, "
        "engine and load, and are its times in ms?"
    ]


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
        if low == high:
            continue
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
    """Between the best level and the further of its neighbours, as a logarithm; beyond it where it is the lowest.

    Not the better neighbour's side: a queue makes the gap jump, and the true level may lie on the other one.
    """
    ordered, kind = sorted(runs, key=lambda run: run.level), _kind(runs[0])
    if len(kind.levels) < 2:
        return None
    at = min(range(len(ordered)), key=lambda k: ordered[k].gap)
    best = ordered[at].level
    sides = [ordered[k] for k in (at - 1, at + 1) if 0 <= k < len(ordered)]
    sides.sort(key=lambda run: abs(math.log(run.level / best)), reverse=True)
    levels = [math.sqrt(best * side.level) for side in sides]
    if at == 0 and len(ordered) > 1 and kind.unit:
        levels.insert(0, best * best / ordered[1].level)
    candidates = [kind.rounded(level) for level in levels]
    return next((x for x in candidates if all(abs(math.log(x / run.level)) > 0.01 for run in runs)), None)


# ------------------------------------------------------------------ evidence


def _as_cause(
    run: TriedCause, previous: TriedCause, share: float, server: ServerStatistics | None, plain: Validation
) -> Cause:
    """The cause in words, with what latency and counters say of it. The first is held against the plain prediction."""
    kind, is_first = _kind(run), previous.kind is None
    without = plain if is_first else previous.validation
    own = kind.change(run.level)
    change = {name: msgspec.to_builtins(value) for name, value in own.items()}
    if "calibration" in own:
        made, neutral = own["calibration"], Calibration()
        change = {
            name: getattr(made, name) for name in ("host", "request") if getattr(made, name) != getattr(neutral, name)
        }
    facts = [kind.shown.sentence if kind.shown is not None else "", kind.predicted]
    return Cause(
        name=kind.name,
        title=kind.title(run.level),
        share=share,
        change=change,
        level=run.level,
        evidence=[
            *filter(None, facts),
            *_latencies(kind, without, run.validation, "predicted" if is_first else "with the causes above"),
            *(_ratios(plain) if is_first else []),
            *_counted(kind, run.validation, server),
        ],
        remedy=kind.remedy,
        alike=list(run.alike),
    )


def _latencies(kind: CauseKind, without: Validation, with_cause: Validation, label: str) -> list[str]:
    """Each metric without the cause, with it, and as measured."""
    sentences = []
    shown = ["mean_ttft_ms", "mean_tpot_ms"]
    shown += ["p99_itl_ms"] if kind.name in ("eager", "host", "scheduling", "token_budget") else []
    before, after = (metrics(one.outcome) for one in (without, with_cause))
    for name in shown:
        statistic, metric, _ = name.split("_")
        one, then, figure = without.errors.get(metric), with_cause.errors.get(metric), without.figures.get(name)
        was, becomes, seen = before[name], after[name], figure.measured if figure is not None else None
        if statistic == "mean" and one is not None and then is not None:  # of the requests that were measured
            was, becomes, seen = one.predicted_mean_ms, then.predicted_mean_ms, one.measured_mean_ms
        if was is None or becomes is None or (seen is None and statistic == "mean"):
            continue
        measured = f", {milliseconds(seen)} measured" if seen is not None else ""
        sentences.append(
            f"{statistic} {metric.upper()}: {milliseconds(was)} {label}, {milliseconds(becomes)} with this cause"
            + measured
        )
    return sentences


def _ratios(before: Validation) -> list[str]:
    """Which requests are slower than predicted."""
    ratios = signatures(before, before)
    ttft, tpot = (
        [ratios[name] for name in names if name in ratios]
        for names in (("ttft_short_prompts", "ttft_long_prompts"), ("tpot_quiet", "tpot_busy"))
    )
    short_long = (
        "measured TTFT is {:.2f} times the prediction for the shortest third of prompts, {:.2f} for the longest"
    )
    quiet_busy = "measured TPOT is {:.2f} times the prediction in the quietest third, {:.2f} in the busiest"
    return ([short_long.format(*ttft)] if ttft else []) + ([quiet_busy.format(*tpot)] if tpot else [])


def _counted(kind: CauseKind, validation: Validation, server: ServerStatistics | None) -> list[str]:
    """What the server's counters, or the simulation's, say of this cause."""
    outcome, sentences = validation.outcome, []
    if kind.name == "kv_cache":
        times = plural(int(outcome.preemptions.sum()), "time")
        sentences.append(f"in the simulation such a cache preempts requests {times}")
    if server is None:
        return sentences
    if kind.name == "kv_cache" and server.preemptions >= 0:
        sentences.append(f"the server preempted requests {plural(round(server.preemptions), 'time')}")
    if kind.name == "kv_cache" and math.isfinite(server.kv_cache_usage):
        sentences.append(f"its cache was at most {percent(server.kv_cache_usage)} full")
    if kind.name == "token_budget" and math.isfinite(server.largest_step_tokens):
        sentences.append(f"the server's largest step had at most {server.largest_step_tokens:,.0f} tokens")
    if kind.name in ("sequences", "kv_cache") and math.isfinite(server.queue_ms):
        sentences.append(f"a request waited {milliseconds(server.queue_ms)} in its queue on average")
    if kind.name in ("sequences", "kv_cache") and math.isfinite(server.waiting):
        sentences.append(f"{server.waiting:.1f} requests were in its queue on average")
    if kind.name == "prefix_cache" and math.isfinite(server.prefix_cache_hit_rate):
        sentences.append(
            f"the server's prefix cache had {percent(server.prefix_cache_hit_rate)} of the prompts' tokens"
        )
    return sentences
