"""A calibration from a step log: the steps of a server beside those of the same formulas, by class of step.

fit = fit_steps("llama-3.1-8b", "h200", read_step_log(["server.log"]))
fit.calibration.decode, fit.classes["decode"].unseen       # 0.95, 0.004: relative error of steps it did not see

Five figures at most, each a median that outliers do not move: a factor on prompts' tokens and one on decode steps, a
further one on steps that have both, a further one on decode steps outside of CUDA graphs, and one on the host's time.
The last is what tells host-bound steps from kernel-bound ones: the formulas take the longer of both, so it moves the
small steps and leaves the large ones. Every figure is fitted to the first part of its class of steps, and has to make
the errors of the later part smaller, or it stays at 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue
from ..costs import host
from ..inference.memory import memory_table
from ..inference.request import build_request
from ..inference.workload import batch_shape_of
from ..serving.engine_time import Throttle
from ..serving.logged_step import LoggedStep, StepLog
from ..serving.step_clock import StepBatch, StepClock
from ..specs.structs import Calibration
from .fit_calibration import Trial
from .step_times import LEAST, from_result_to_result, own_times, with_contexts

CLASSES = ("decode", "eager", "prefill", "mixed")  # of steps, in the order in which their figures are fitted
SEEN = 0.6  # share of a class's steps, the first ones, that figures are fitted to
ROWS = 2000  # of a class that are looked at
HOSTS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)  # factors on the host's time that are tried first
REFINED = 3  # times that the distance between two of them is cut to a third
HOST_GAIN = 0.05  # share of the scatter that a factor on the host's time must take away
HOST_BOUND = 1.05  # by which a host-bound step slows down, at least, where the host takes a tenth longer
PURE = 0.3  # share of a mixed step's tokens that are prompts', from which on it tells a factor of theirs


class StepClass(msgspec.Struct, kw_only=True):
    """How far predicted steps of a class are from logged ones; mean absolute relative errors."""

    steps: int
    seconds: float  # of the log that they take
    host_bound: float  # share of them that wait for the host
    before: float  # mean absolute error, without a calibration
    bias: float  # mean of the errors before, signs kept; a positive one is too slow
    after: float | None = None  # on all of them, calibrated
    unseen_before: float | None = None  # on the later part
    unseen: float | None = None  # on the later part, which the figures were not fitted to
    note: str = ""  # why no figure was fitted to it


class StepFit(NamedTuple):
    """A calibration, and the errors of each class of steps."""

    calibration: Calibration
    classes: dict[str, StepClass]
    warnings: tuple[str, ...] = ()
    of_log: str = ""  # why nothing can be fitted to its log

    def objection(self) -> str:
        """Why it is not worth writing, '' if it is: the later part of some class must gain by it, and none lose."""
        if self.of_log:
            return "nothing can be fitted to waits alone"
        shown = [
            f"{name} {one.unseen_before:.1%} off before and {one.unseen:.1%} after"
            for name, one in self.classes.items()
            if one.unseen is not None and one.unseen_before is not None
        ]
        if not shown:
            return f"no class has {LEAST} steps before and after: a calibration needs more of the log"
        if plain_factors(self.calibration):
            return f"no figure makes steps better that it did not see ({', '.join(shown)})"
        return ""


def plain_factors(calibration: Calibration) -> bool:
    """Whether nothing is corrected: ``plain_factors(Calibration())  # True``"""
    return all(getattr(calibration, name) == 1.0 for name in ("prefill", "decode", "mixed", "eager", "host"))


class _Rows(NamedTuple):
    """Logged steps with what is predicted of each, by factor on the host's time."""

    steps: Sequence[LoggedStep]
    seconds: np.ndarray
    weights: np.ndarray
    uncertain: np.ndarray  # share of the seconds by which all of a kind may be off
    prompts: np.ndarray  # share of each step's tokens that are prompts'
    kind: np.ndarray  # index into CLASSES
    seen: np.ndarray  # whether figures may be fitted to it
    predicted: dict[float, np.ndarray]


class StepPredictor:
    """``StepPredictor("llama-3.1-8b", "h200", {}).seconds(steps)``: what formulas say of logged steps."""

    def __init__(self, model: str, gpu: str, plan: Mapping[str, Any]) -> None:
        self.model, self.gpu, self.plan = model, gpu, {k: v for k, v in plan.items() if k != "calibration"}
        self.request = build_request(model, gpu, **self.plan)
        self.clock = StepClock(model, gpu, **plan)

    def kv_capacity(self) -> float:
        """Tokens that the engine's KV cache would hold."""
        bound_plan = self.request.bind()
        held = memory_table(bound_plan, batch_shape_of(bound_plan, self.request.workload))
        return float(held.max_total_tokens or 0)

    def with_contexts(self, log: StepLog) -> list[LoggedStep]:
        """The steps, with what a log does not say of them: contexts, the host's time, and what those before left."""
        capacity = log.kv_cache_tokens if math.isfinite(log.kv_cache_tokens) else self.kv_capacity()
        streams: dict[str, list[int]] = {}
        for place, step in enumerate(log.steps):
            streams.setdefault(step.stream, []).append(place)
        known = list(log.steps)
        for places in streams.values():  # each engine has its own cache, host and clocks
            budget = self.request.plan.max_num_batched_tokens
            steps = list(with_contexts([log.steps[place] for place in places], capacity, budget))
            if any(math.isfinite(step.wait_s) for step in steps):
                steps = from_result_to_result(steps, [self._host_seconds(step) for step in steps])
                steps = own_times(steps, self.seconds(list(self._with_history(steps))))
            for place, step in zip(places, self._with_history(steps), strict=True):
                known[place] = step
        return known

    def _host_seconds(self, step: LoggedStep) -> float:
        """Seconds that planning and launching the step keep the host busy."""
        cost, seqs = self.clock.stages[0], round(step.decode_seqs)
        prompts = round(step.prefill_seqs)
        return cost.host_seconds(round(step.prefill_tokens), seqs * cost.tokens_per_decode, seqs + prompts)

    def _with_history(self, steps: Sequence[LoggedStep]) -> Iterator[LoggedStep]:
        """What a step owes to those of its engine before it, in a log that has them all: see `serving.engine`.

        Sequences decode in a step if it follows another one. The host launches it once that one is launched.
        """
        engine, cost = self.request.engine, self.clock.stages[0]
        looks_late = engine.results_after_launches and engine.async_scheduling
        throttle = Throttle(cost.throttle_after or 1.0)
        free = now = 0.0  # free: seconds of the step before after which the host was free
        for step in steps:
            if not step.stream:
                yield step
                continue
            late = hot = 0.0
            ahead = free if step.decode_seqs and looks_late else 0.0
            if not (step.decode_seqs or step.prefill_cached):
                throttle = Throttle(cost.throttle_after or 1.0)
            if cost.throttle_after:
                hot = throttle.fraction_at(now)
                share = step.prefill_tokens / (step.prefill_tokens + step.decode_seqs)
                throttle.add_load(now, step.seconds, share, hot)
            if step.prefill_tokens and looks_late:
                late = min(max(0.0, self._host_seconds(step) - ahead), step.seconds)
            free = step.seconds - late
            now += step.seconds
            yield step._replace(ahead=ahead, thermal_state=hot)

    def kind(self, step: LoggedStep) -> int:
        """The class of a step, as an index into `CLASSES`."""
        if step.prefill_tokens:
            return CLASSES.index("mixed" if step.decode_seqs else "prefill")
        eager = host.without_graphs(
            self.request.engine, round(step.decode_seqs) * self.clock.stages[0].tokens_per_decode, False
        )
        return CLASSES.index("eager" if eager else "decode")

    def seconds(self, steps: Sequence[LoggedStep], calibration: Calibration | None = None) -> np.ndarray:
        """Seconds of each step; nan where one is beyond what the model takes."""
        clock = self.clock
        if calibration is not None:
            clock = StepClock(self.model, self.gpu, **self.plan, calibration=calibration)
        return np.array([_predicted(clock, step) for step in steps])


def _predicted(clock: StepClock, step: LoggedStep) -> float:
    """Sequences of a step are taken to be alike: a log has their sums."""
    prompts, decoding, limit = max(1, round(step.prefill_seqs)), round(step.decode_seqs), clock.max_model_len
    chunks: list[tuple[int, int]] = []
    if step.prefill_tokens:
        new, cached = round(step.prefill_tokens / prompts), round(step.prefill_cached / prompts)
        if not 1 <= new <= limit:
            return math.nan
        chunks = [(new, min(cached, limit - new))] * prompts
    context = step.decode_kv / decoding if decoding else 0.0
    if not math.isfinite(context) or context > limit:
        return math.nan
    state = {"ahead": step.ahead, "thermal_state": step.thermal_state}
    return clock.step_ms(StepBatch(chunks, [max(1, round(context))] * decoding), **state) / 1e3


def compare_steps(model: str, gpu: str, log: StepLog, plan: Mapping[str, Any]) -> dict[str, StepClass]:
    """How far predictions are off, by class of step: ``compare_steps("llama-3.1-8b", "h200", log, {})["decode"]``"""
    rows = _rows(StepPredictor(model, gpu, plan), log)
    return {name: _step_class(rows, name, rows.predicted[1.0]) for name in _present(rows)}


def fit_steps(model: str, gpu: str, log: StepLog, plan: Mapping[str, Any]) -> StepFit:
    """The figures that make a log's steps right, and their errors: see the top of this file."""
    predictor = StepPredictor(model, gpu, plan)
    rows = _rows(predictor, log)
    factor_of_host = _host_factor(predictor, rows)
    notes: dict[str, str] = {}
    trials = [1.0] if factor_of_host == 1 else [1.0, factor_of_host]
    fits = {each: _factors(rows, each, notes if each == trials[-1] else {}) for each in trials}
    calibration = fits[trials[-1]]
    if len(trials) > 1 and _unseen_error(rows, calibration) > _unseen_error(rows, fits[1.0]) * (1 - HOST_GAIN):
        notes, calibration = {}, _factors(rows, 1.0, notes)
    calibrated = _calibrated(rows, calibration)
    classes = {}
    for name in _present(rows):
        one = _step_class(rows, name, rows.predicted[1.0])
        chosen = rows.kind == CLASSES.index(name)
        later = chosen & ~rows.seen
        errors = np.abs(calibrated / rows.seconds - 1), np.abs(rows.predicted[1.0] / rows.seconds - 1)
        classes[name] = msgspec.structs.replace(
            one,
            after=_mean(errors[0], rows.weights, chosen),
            unseen_before=_mean(errors[1], rows.weights, later) if later.any() else None,
            unseen=_mean(errors[0], rows.weights, later) if later.any() else None,
            note=notes.get(name, ""),
        )
    return StepFit(calibration, classes, tuple(log.notes), log.objection)


def described(fit: StepFit, log: StepLog, labels: Mapping[str, str]) -> Calibration:
    """The calibration with what it was made for and from, and its errors; ``labels`` as `run_header` has them."""
    error = {
        name: {key: value for key in ("before", "after", "unseen") if (value := getattr(one, key)) is not None}
        for name, one in fit.classes.items()
    }
    return msgspec.structs.replace(
        fit.calibration,
        model=labels["model"],
        gpu=labels["gpu"],
        engine=labels["engine_name"],
        version=labels["engine_version"],
        precision=labels["quantization"],
        measured=log.source,
        steps=sum(one.steps for one in fit.classes.values()),
        error=error,
    )


# ------------------------------------------------------------------ rows


def _rows(predictor: StepPredictor, log: StepLog) -> _Rows:
    steps = [step for step in predictor.with_contexts(log) if step.whole]
    kinds = np.array([predictor.kind(step) for step in steps])
    kept = np.zeros(len(steps), bool)
    for kind in range(len(CLASSES)):
        of_class = np.flatnonzero(kinds == kind)
        if len(of_class):  # the first are those of warming up as often as not: even over all of the log
            kept[of_class[np.unique(np.linspace(0, len(of_class) - 1, ROWS).round().astype(int))]] = True
    chosen = [step for step, keep in zip(steps, kept, strict=True) if keep]
    predicted = predictor.seconds(chosen)
    valid = np.isfinite(predicted) & (predicted > 0)
    if not valid.any():
        raise BadValue(
            f"{log.source} has no step that can be predicted: sequences are longer than the model takes, or contexts "
            "are unknown, as in a log of vLLM without its lines of every 10 s that say how full the KV cache is"
        )
    chosen = [step for step, keep in zip(chosen, valid, strict=True) if keep]
    kinds = kinds[kept][valid]
    tokens = np.array([[step.prefill_tokens, step.decode_seqs] for step in chosen])
    seen = np.zeros(len(chosen), bool)
    for kind in range(len(CLASSES)):
        of_class = np.flatnonzero(kinds == kind)
        seen[of_class[: round(SEEN * len(of_class))]] = True
    return _Rows(
        steps=chosen,
        seconds=np.array([step.seconds for step in chosen]),
        weights=np.array([float(step.steps) for step in chosen]),
        uncertain=np.array([step.uncertain_s / step.seconds for step in chosen]),
        prompts=tokens[:, 0] / tokens.sum(axis=1),
        kind=kinds,
        seen=seen,
        predicted={1.0: predicted[valid], 1.1: predictor.seconds(chosen, Calibration(host=1.1))},
    )


def _present(rows: _Rows) -> list[str]:
    return [name for kind, name in enumerate(CLASSES) if (rows.kind == kind).any()]


def _step_class(rows: _Rows, name: str, predicted: np.ndarray) -> StepClass:
    chosen, off = rows.kind == CLASSES.index(name), predicted / rows.seconds - 1
    slower = rows.predicted[1.1] / rows.predicted[1.0] - 1
    return StepClass(
        steps=round(float(rows.weights[chosen].sum())),
        seconds=float((rows.weights * rows.seconds)[chosen].sum()),
        host_bound=_mean((slower > HOST_BOUND - 1).astype(float), rows.weights, chosen),
        before=_mean(np.abs(off), rows.weights, chosen),
        bias=_mean(off, rows.weights, chosen),
    )


def _mean(values: np.ndarray, weights: np.ndarray, chosen: np.ndarray) -> float:
    return float(np.average(values[chosen], weights=weights[chosen]))


# ------------------------------------------------------------------ figures


def _factors(rows: _Rows, factor_of_host: float, notes: dict[str, str]) -> Calibration:
    """The figures of every class, each only if the later part of the class gains by it."""
    ratio = rows.seconds / rows.predicted[factor_of_host]
    made = Calibration(host=factor_of_host)
    made = _tried(rows, made, "decode", "decode", ratio, notes)
    made = _tried(rows, made, "eager", "eager", ratio / made.decode, notes)
    pure = (rows.kind == CLASSES.index("prefill")).sum() >= LEAST
    if pure:
        made = _tried(rows, made, "prefill", "prefill", ratio, notes)
        both = made.decode + (made.prefill - made.decode) * rows.prompts
        return _tried(rows, made, "mixed", "mixed", ratio / both, notes)
    with np.errstate(divide="ignore", invalid="ignore"):  # steps with few tokens of prompts say nothing of them
        of_prompts = (ratio - made.decode * (1 - rows.prompts)) / rows.prompts
    return _tried(rows, made, "mixed", "prefill", np.where(rows.prompts >= PURE, of_prompts, np.nan), notes)


def _tried(
    rows: _Rows, made: Calibration, name: str, figure: str, ratio: np.ndarray, notes: dict[str, str]
) -> Calibration:
    """The calibration with a figure that is the median of some ratios, if later steps of its class gain by it."""
    chosen = rows.kind == CLASSES.index(name)
    known = chosen & np.isfinite(ratio) & (ratio > 0)
    if not chosen.any():
        return made
    counts = [int((known & part).sum()) for part in (rows.seen, ~rows.seen)]
    if counts[0] < LEAST or counts[1] < LEAST // 2:
        notes[name] = f"{sum(counts)} lines are too few to fit a figure and to test it: {LEAST + LEAST // 2} are needed"
        return made
    value = _weighted_median(ratio[known & rows.seen], rows.weights[known & rows.seen])
    uncertain = float(np.mean(rows.uncertain[known]))
    if abs(math.log(value)) < 2 * uncertain:
        says = f"says {value:.3f}, give or take {2 * uncertain:.1%}" if uncertain < 0.5 else "cannot tell"
        notes[name] = f"not corrected: the log's clock {says}; stamp its lines"
        return made
    other = msgspec.structs.replace(made, **{figure: float(np.clip(value, 0.01, 100))})
    later = chosen & ~rows.seen
    was, now = (_calibrated(rows, each)[later] / rows.seconds[later] - 1 for each in (made, other))
    if Trial(was, now).gain() > 0:
        return other
    errors = [float(np.abs(part).mean()) for part in (was, now)]
    notes[name] = f"not corrected: later steps are {errors[0]:.1%} off without a factor and {errors[1]:.1%} with one"
    return made


def _calibrated(rows: _Rows, made: Calibration) -> np.ndarray:
    """Seconds of the steps under a calibration whose factor on the host's time was tried before."""
    both = made.decode + (made.prefill - made.decode) * rows.prompts
    further = np.array([1.0, made.eager, 1.0, made.mixed])[rows.kind]
    seconds: np.ndarray = rows.predicted[made.host] * both * further
    return seconds


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(weights.sum() / 2, below, values[order]))


def _host_factor(predictor: StepPredictor, rows: _Rows) -> float:
    """The factor on the host's time under which steps of a class scatter least around their factor."""
    if ((rows.predicted[1.1] / rows.predicted[1.0] > HOST_BOUND) & rows.seen).sum() < LEAST:
        return 1.0  # too few steps would tell
    step, factors = math.log(2.0) / 2, list(HOSTS)
    for _ in range(REFINED + 1):
        for each in factors:
            if each not in rows.predicted:
                rows.predicted[each] = predictor.seconds(rows.steps, Calibration(host=each))
        best = min((each for each in rows.predicted if each != 1.1), key=lambda each: _scatter(rows, each))
        step /= 3
        factors = [round(best * math.exp(way * step), 6) for way in (-1, 1)]
    return best if _scatter(rows, best) < _scatter(rows, 1.0) * (1 - HOST_GAIN) else 1.0


def _scatter(rows: _Rows, factor_of_host: float) -> float:
    """Mean distance of the fitted part's log ratios from the median of their class."""
    logs, total = np.log(rows.seconds / rows.predicted[factor_of_host]), 0.0
    for kind in range(len(CLASSES)):
        chosen = rows.seen & (rows.kind == kind)
        if chosen.sum() >= LEAST:
            middle = _weighted_median(logs[chosen], rows.weights[chosen])
            total += float((rows.weights[chosen] * np.minimum(np.abs(logs[chosen] - middle), 0.5)).sum())
    return total


def _unseen_error(rows: _Rows, made: Calibration) -> float:
    """Mean absolute relative error of the later part of all classes."""
    off = np.minimum(np.abs(_calibrated(rows, made) / rows.seconds - 1), 1.0)
    return _mean(off, rows.weights, ~rows.seen) if (~rows.seen).any() else math.inf
