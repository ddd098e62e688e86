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
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue
from ..costs import host
from ..inference.memory import memory_table
from ..inference.request import build_request
from ..inference.workload import batch_shape_of
from ..serving.engine_time import Throttle
from ..serving.step_clock import StepBatch, StepClock
from ..serving.step_log import LoggedStep, StepLog
from ..specs.structs import Calibration
from .fit_calibration import Trial

CLASSES = ("decode", "eager", "prefill", "mixed")  # of steps, in the order in which their figures are fitted
LEAST = 12  # steps of a class that a figure is fitted to; one of a log's lines may stand for many
SEEN = 0.6  # share of a class's steps, the first ones, that figures are fitted to
ROWS = 2000  # of a class that are looked at
HOSTS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)  # factors on the host's time that are tried first
REFINED = 3  # times that the distance between two of them is cut to a third
HOST_GAIN = 0.05  # share of the scatter that a factor on the host's time must take away
HOST_BOUND = 1.05  # by which a host-bound step slows down, at least, where the host takes a tenth longer
READY = 1e-4  # s of a wait for a result that was there before
MOST_READY = 4  # steps in a row, the last of them waited for: where more are not, the host decides
TICK_ERROR, HOST_SPREAD = 0.005, 0.15  # s; and share by which launches of two kinds are off differently
ROUNDS = 30
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

    def objection(self) -> str:
        """Why it is not worth writing, '' if it is: the later part of some class must gain by it, and none lose."""
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
        steps = list(_with_contexts(log.steps, capacity, self.request.plan.max_num_batched_tokens))
        if any(math.isfinite(step.wait_s) for step in steps):
            steps = from_result_to_result(steps, [self._host_seconds(step) for step in steps])
            steps = own_times(steps, self.seconds(list(self._with_history(steps))))
        return list(self._with_history(steps))

    def _host_seconds(self, step: LoggedStep) -> float:
        """Seconds that planning and launching the step keep the host busy."""
        cost, seqs = self.clock.stages[0], round(step.decode_seqs)
        prompts = round(step.prefill_seqs)
        return cost.host_seconds(round(step.prefill_tokens), seqs * cost.tokens_per_decode, seqs + prompts)

    def _with_history(self, steps: Sequence[LoggedStep]) -> Iterator[LoggedStep]:
        """What a step owes to those before it, in a log that has them all: see `serving.engine` and its `Throttle`.

        Sequences decode in a step if it follows another one. The host launches it once that one is launched.
        """
        engine, cost = self.request.engine, self.clock.stages[0]
        looks_late = engine.results_after_launches and engine.async_scheduling
        free: dict[str, float] = {}  # engine -> seconds of the step before after which the host was free
        throttles: dict[str, Throttle] = {}
        now = 0.0
        for step in steps:
            if not step.stream:
                yield step
                continue
            ahead, late, hot = 0.0, 0.0, 0.0
            if step.decode_seqs and looks_late:
                ahead = free.get(step.stream, 0.0)
            if not (step.decode_seqs or step.prefill_cached) or step.stream not in throttles:
                throttles[step.stream] = Throttle(cost.throttle_after or 1.0)
            if cost.throttle_after:
                hot = throttles[step.stream].fraction_at(now)
                share = step.prefill_tokens / (step.prefill_tokens + step.decode_seqs)
                throttles[step.stream].add_load(now, step.seconds, share, hot)
            if step.prefill_tokens and looks_late:
                late = min(max(0.0, self._host_seconds(step) - ahead), step.seconds)
            free[step.stream] = step.seconds - late
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
    state = {"ahead": step.ahead, "thermal_state": step.thermal_state} if chunks else {}
    return clock.step_ms(StepBatch(chunks, [max(1, round(context))] * decoding), **state) / 1e3


# ------------------------------------------------------------------ what a log leaves out


def _with_contexts(steps: Sequence[LoggedStep], capacity: float, token_budget: float) -> Iterator[LoggedStep]:
    """Contexts, from the share of the KV cache in use where a log has no more.

    vLLM before 0.26 says that share every 10 s. In between tokens are counted: those of prompts come in and one for
    every sequence that decodes, and with a sequence that ends the mean context of all goes out.
    """
    usage, running = math.nan, 0.0
    held = math.nan if not steps or steps[0].decode_seqs else 0.0
    for step in steps:
        if step.decode_seqs < running:
            held *= step.decode_seqs / running
        before, held = held, held + step.prefill_tokens + step.decode_seqs
        goes_on = step.prefill_seqs > 0 and step.prefill_tokens + step.decode_seqs >= token_budget  # the last prompt
        running = step.decode_seqs + step.prefill_seqs - goes_on
        if math.isfinite(step.kv_usage) and not (step.stream and step.kv_usage == usage):
            usage, held = step.kv_usage, step.kv_usage * capacity
            before = held - step.prefill_tokens - step.prefill_cached
        kv = step.decode_kv if math.isfinite(step.decode_kv) else before
        yield step._replace(decode_kv=max(kv, step.decode_seqs) if math.isfinite(kv) else math.nan)


def from_result_to_result(steps: Sequence[LoggedStep], host_seconds: Sequence[float]) -> list[LoggedStep]:
    """Seconds of steps of which the log has the wait alone, and the clock in whole seconds.

    vLLM plans and launches the step after this one, and only then waits for this one's result (`step_with_batch_queue`
    of vllm/v1/engine/core.py): to the wait belongs what the *next* step keeps the host busy, least before one that
    decodes. The clock's ticks say how much of it there is: two factors on the host's predicted time, one before steps
    with prompts and one before others, which are alike unless the ticks say otherwise.
    """
    following = [*steps[1:], steps[-1]]
    waits, clocks = (np.array([getattr(step, name) for step in steps]) for name in ("wait_s", "clock_s"))
    is_prompt = np.array([step.prefill_tokens > 0 for step in following])
    busy = np.array([*host_seconds[1:], host_seconds[-1]])
    work = np.stack([np.where(is_prompt, 0.0, busy), np.where(is_prompt, busy, 0.0)], axis=1)
    starts = np.flatnonzero([not step.decode_seqs for step in steps])  # after a pause, perhaps
    if (clocks % 1 > 0).any():  # lines are stamped with more than seconds: that is when results came
        gaps = np.diff(clocks, prepend=clocks[0])
        return [
            step._replace(seconds=float(gap), whole=gap > 0 and number not in starts)  # the first has none before it
            for number, (step, gap) in enumerate(zip(steps, gaps, strict=True))
        ]
    lines, times = [], []
    for begin, end in pairwise([0, *starts.tolist(), len(steps)]):
        ticks = begin + 1 + np.flatnonzero(np.diff(clocks[begin:end]) > 0)  # each within a step
        for i, j in pairwise(ticks.tolist()):
            halves, between = [i, j], slice(i + 1, j)
            lines.append(work[between].sum(axis=0) + work[halves].sum(axis=0) / 2)
            times.append(clocks[j] - clocks[i] - waits[between].sum() - waits[halves].sum() / 2)
    if len(lines) < LEAST:
        return list(steps)
    factors, errors = _host_factors(np.array(lines), np.array(times))
    added = zip((work @ factors).tolist(), (work @ errors).tolist(), strict=True)
    return [
        step._replace(seconds=step.wait_s + more, uncertain_s=error, whole=number not in starts)
        for number, (step, (more, error)) in enumerate(zip(steps, added, strict=True))
    ]


def _host_factors(work: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Robust least squares, and standard deviations: pauses are outliers, and factors that differ must be worth it."""
    middle = float(np.median(times / work.sum(axis=1)))
    factors: np.ndarray = np.full(2, middle)
    prior = np.eye(2) / (HOST_SPREAD * middle) ** 2
    for _ in range(ROUNDS):
        off = np.abs(times - work @ factors)
        noise = max(TICK_ERROR, 1.4826 * float(np.median(off)))
        weights = np.minimum(1.0, 1.345 * noise / np.maximum(off, 1e-9)) / noise**2
        right = work.T @ (weights * times) + prior.sum(axis=1) * middle
        precision = work.T @ (weights[:, None] * work) + prior
        factors = np.linalg.solve(precision, right)
    return factors.clip(0.0), np.sqrt(np.diag(np.linalg.inv(precision)))


def own_times(steps: Sequence[LoggedStep], predicted: np.ndarray) -> list[LoggedStep]:
    """What each step takes itself, of seconds from one result to the next.

    A result that is there at once came before its wait: the host was still launching the next step. So only from a
    step that was waited for to the next such step times add up. Decode steps among them take what others do, and the
    step with prompts the rest. Where the host is never waited for, what it does is what a step takes.
    """
    seconds = np.array([step.seconds for step in steps])
    ready = np.array([step.wait_s <= READY for step in steps])
    decode = np.array([step.whole and not step.prefill_tokens for step in steps])
    known = decode & ~ready & ~np.roll(ready, 1) & np.isfinite(predicted)
    typical = predicted * (float(np.median(seconds[known] / predicted[known])) if known.sum() >= LEAST else 1.0)
    own, begin = list(steps), 0
    for end in range(1, len(steps) + 1):
        if end < len(steps) and ready[end - 1] and steps[end].decode_seqs:
            continue
        chain, begin = range(begin, end), end
        prompts = [i for i in chain if steps[i].prefill_tokens]
        if len(chain) == 1 or len(chain) > MOST_READY or not (prompts or known.sum()):
            continue
        rest = seconds[chain.start : end].sum() - sum(typical[i] for i in chain if i not in prompts)
        for i in chain:
            its = rest if i in prompts else typical[i]
            whole = [i] == prompts and rest > 0 and all(steps[k].whole for k in chain)
            error = sum(steps[k].uncertain_s for k in chain)
            own[i] = steps[i]._replace(seconds=float(its if its > 0 else seconds[i]), whole=whole, uncertain_s=error)
    return own


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
    return StepFit(calibration, classes, tuple(log.notes))


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
            f"{log.source} has no step that can be predicted: contexts are unknown (no share of the KV cache in its "
            "lines), or sequences are longer than the model takes"
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
        notes[name] = (
            f"not corrected: the log's clock says {value:.3f}, give or take {2 * uncertain:.1%}; stamp its lines"
        )
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
