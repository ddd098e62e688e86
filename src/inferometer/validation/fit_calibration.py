"""A calibration from a user's own measurements: two factors and a time per request, fitted robustly.

Predictions of a loaded server are not linear in these (a slower step makes queues), so the simulation is run again with
each of them moved both ways, and the residuals are followed downhill: Gauss-Newton steps with weights that leave
outliers alone. The moves are wide at first: a small one only shifts requests across the borders of steps, and what a
TTFT gains or loses by that is noise around its slope. A request whose two moves disagree crossed such a border, and
counts less by as much. What the calibration is worth is judged on rows that it was not fitted to: a fifth of the
requests is left out at a time, and the simulation is run with what the other four fifths say.

The parameters are one vector of three: ln(prefill factor), ln(decode factor), and seconds per request in `UNIT`. The
residuals are ln(predicted / measured) of every request's TTFT, then of every request's TPOT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue
from ..specs.structs import Calibration
from .validate import MEASURED, Validation

START = np.zeros(3)
UNIT = 0.01  # s per request that weigh as much as 1 in a factor's logarithm
NUDGES = (
    0.3,
    0.2,
    0.1,
    0.1,
    0.05,
    0.05,
    0.02,
    0.02,
)  # how far each parameter is moved both ways for its slopes, by round
PRIOR = np.array([0.7, 0.7, 2.0])  # standard deviation of each parameter before anything was measured
FOLDS = 5
ITERATIONS = 20  # of reweighted least squares, with each kind of weights
LIMIT = np.array([3.0, 3.0, 500.0])
FREE = ((1, 1, 1), (0, 1, 0), (1, 0, 1))  # parameters that are moved: all; if that does not help, those of one metric
OUTLIER = 4.0  # medians: a residual counts as no more than so many of them
LEAST_NOISE = 0.005  # of a residual: what no timing is better than
LEAST_STEP = 5e-4  # of a parameter: less is not worth a simulation
GAIN = 0.02  # share of an error that must go on unseen rows, and that none may grow by

Replay = Callable[[Calibration], Validation]


class Trial(NamedTuple):
    """Relative errors of a metric, one a request: as predicted, and by what was fitted without the request."""

    before: np.ndarray
    unseen: np.ndarray

    def errors(self) -> tuple[float, float]:
        """Means of the absolute errors before and on unseen rows, where an outlier counts as a few medians."""
        was, now = self._sizes(self.before, self.unseen)
        return float(was.mean()), float(now.mean())

    def gain(self) -> int:
        """1 if the calibration helps by more than chance makes of it, -1 if it hurts, 0 if neither.

        Relative errors forgive what is predicted too short, logarithms what is predicted too long: it hurts if one of
        both grows, and helps if both get smaller.
        """
        gains = []
        for was, now in (
            self._sizes(self.before, self.unseen),
            self._sizes(np.log1p(self.before), np.log1p(self.unseen)),
        ):
            change = was - now
            least, chance = GAIN * was.mean() + 5e-4, 2 * change.std() / max(1, len(change) - 1) ** 0.5
            gains.append(int(change.mean() > max(least, chance)) - int(change.mean() < -least))
        return min(gains)

    @staticmethod
    def _sizes(before: np.ndarray, unseen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cap = OUTLIER * float(np.median(np.abs(before))) + 0.02
        return np.minimum(np.abs(before), cap), np.minimum(np.abs(unseen), cap)


class Fit(NamedTuple):
    """A calibration, the comparison before and after it, and errors of rows that it was not fitted to."""

    calibration: Calibration
    before: Validation
    after: Validation
    trials: dict[str, Trial]  # by metric
    unseen: dict[str, float]  # metric -> mean absolute relative error

    def gains(self) -> dict[str, int]:
        """Whether each metric of unseen rows gains by it (1), loses (-1), or neither."""
        return {metric: trial.gain() for metric, trial in self.trials.items()}

    def objection(self) -> str:
        """Why it is not worth writing, '' if it is: unseen rows must gain by it, and none of TTFT, TPOT, E2E lose."""
        if len(self.before.trace) < 2:
            return "one request is not enough for a calibration: none would be left to test it on"
        gains = self.gains()
        lost = [metric for metric in gains if gains[metric] < 0]
        if not lost and any(gain > 0 for gain in gains.values()):
            return ""
        shown = []
        for metric in lost or gains:
            was, now = self.trials[metric].errors()
            shown.append(f"{MEASURED[metric]} {was:.1%} off before and {now:.1%} after")
        return f"the calibration does not help on held-out rows ({', '.join(shown)})"


def fit_calibration(replay: Replay, before: Validation) -> Fit:
    """Fit to the measured TTFT and TPOT (end to end follows from them); ``replay`` simulates under a calibration.

    All three figures are moved if that helps both metrics of rows that were left out, else those of one metric: what
    is noise in TTFT must not pass for a prefill factor because TPOT gains.
    ``fit_calibration(lambda c: validate("qwen3-8b", "h200", measured=path, calibration=c), before).calibration.decode``
    """
    if not _known(before).any():
        raise BadValue(
            "a calibration needs measured TTFT or TPOT of requests that the simulation completes; there are none"
        )
    whole = _fit(replay, before, FREE)
    gains = whole.gains()
    if min(gains.values(), default=0) >= 0 and all(gains.get(metric, 1) > 0 for metric in _metrics(before)):
        return whole
    worthwhile = len(_metrics(before)) > 1 and max(gains.values(), default=0) > 0
    parts = (_fit(replay, before, [free]) for free in (FREE[1:] if worthwhile else ()))
    return next((fit for fit in (*parts, whole) if not fit.objection()), whole)


def _fit(replay: Replay, before: Validation, choices: Sequence[Sequence[int]]) -> Fit:
    """The fit whose steps each move the first of the `choices` of parameters that makes errors smaller."""
    parameters, now, known = START, before, _known(before)
    vain = 0  # rounds in a row that found nothing better
    for nudge in NUDGES:
        line = _linearized(replay, parameters, nudge, now)
        better = None
        for free in choices:
            step = _gauss_newton_step(line, free, parameters, known, len(now.trace))
            if np.abs(step).max() > LEAST_STEP:
                better = _line_search(replay, parameters, step, now, before)
            if better is not None:
                break
        parameters, now = better or (parameters, now)
        vain = 0 if better else vain + 1
        if vain == 3:
            break
    trials, unseen = _trials(replay, before, line, choices[0], parameters, known)
    return Fit(_calibration(parameters), before, now, trials, unseen)


def _calibration(parameters: np.ndarray) -> Calibration:
    prefill, decode = np.exp(parameters[:2])
    return Calibration(prefill=float(prefill), decode=float(decode), request=float(parameters[2]) * UNIT)


# ------------------------------------------------------------------ residuals


def _metrics(validation: Validation) -> list[str]:
    return [metric for metric in ("ttft", "tpot") if metric in validation.measured]


def _log_ratios(validation: Validation) -> np.ndarray:
    """ln(predicted / measured): a tenth too slow weighs as much as a tenth too fast. Not finite where unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = [np.log(validation.predicted[m] / validation.measured[m]) for m in _metrics(validation)]
    return np.concatenate([*ratios, np.empty(0)])


def _known(validation: Validation) -> np.ndarray:
    """Which residuals there are: a request may lack a measurement, or not have ended."""
    known: np.ndarray = np.isfinite(_log_ratios(validation))
    return known


def _residuals(validation: Validation) -> np.ndarray:
    """The log ratios, zero where there is none."""
    ratios = _log_ratios(validation)
    return np.where(np.isfinite(ratios), ratios, 0.0)


def _robust_error(residuals: np.ndarray) -> float:
    """Mean of the absolute residuals, where an outlier counts as a few medians."""
    sizes = np.abs(residuals)
    return float(np.minimum(sizes, OUTLIER * np.median(sizes) + 0.02).mean())


def _robust_errors(validation: Validation) -> dict[str, float]:
    metrics, known = _metrics(validation), _known(validation)
    parts = zip(metrics, *(np.split(of, max(1, len(metrics))) for of in (_residuals(validation), known)), strict=False)
    return {metric: _robust_error(residuals[rows]) for metric, residuals, rows in parts if rows.any()}


# ------------------------------------------------------------------ the fit


class Linearization(NamedTuple):
    """The residuals near some parameters."""

    residuals: np.ndarray
    slopes: np.ndarray  # how they move with each parameter: [residual, parameter]
    bends: np.ndarray  # how far they are from a straight line where the parameters were moved to


def _linearized(replay: Replay, parameters: np.ndarray, nudge: float, now: Validation) -> Linearization:
    here = _residuals(now)
    ends = [
        [_residuals(replay(_calibration(parameters + way * nudge * axis))) for way in (1, -1)] for axis in np.eye(3)
    ]
    slopes = np.stack([(up - down) / (2 * nudge) for up, down in ends], axis=1)
    return Linearization(here, slopes, np.sqrt(sum((up / 2 + down / 2 - here) ** 2 for up, down in ends)))


def _gauss_newton_step(
    line: Linearization, free: Sequence[int], parameters: np.ndarray, rows: np.ndarray, count: int
) -> np.ndarray:
    """One robust step: iteratively reweighted least squares with Huber's weights, and the prior as a ridge.

    Each metric, of ``count`` requests, has its own noise: a TTFT scatters with the steps that it waits for, a TPOT
    hardly does. A bend is noise of its row.
    """
    a, r, bends = (line.slopes * free)[rows], line.residuals[rows], line.bends[rows]
    metric = (np.arange(len(line.residuals)) // count)[rows]
    prior = np.diag(PRIOR**-2.0)
    step = np.zeros(3)
    for number in range(2 * ITERATIONS):
        left = r + a @ step
        noise = np.full(len(r), LEAST_NOISE)  # nearly least absolute errors at first, which no outlier leads astray
        for part in set(metric.tolist()) if number >= ITERATIONS else ():  # then the MAD as a standard deviation
            noise[metric == part] = max(1.4826 * float(np.median(np.abs(left[metric == part]))), LEAST_NOISE)
        noise = np.hypot(noise, bends)
        weight = np.minimum(1.0, 1.345 * noise / np.maximum(np.abs(left), 1e-12)) / noise**2
        step = np.linalg.solve(a.T @ (weight[:, None] * a) + prior, -(a.T @ (weight * r)) - prior @ parameters)
    limited: np.ndarray = np.clip(step, -1.0, 1.0) * free
    return limited


def _line_search(
    replay: Replay, parameters: np.ndarray, step: np.ndarray, now: Validation, before: Validation
) -> tuple[np.ndarray, Validation] | None:
    """The step, or half or a quarter of it, whichever first makes the errors smaller; None if none does.

    Queues can make a full step overshoot. A metric that fits well is never made worse than it was `before` to help the
    other one. The sum of logarithms, because the metrics' noises differ.
    """
    first, here = _robust_errors(before), _robust_errors(now)
    for share in (1.0, 0.5, 0.25):
        moved = np.clip(parameters + share * step, -LIMIT, LIMIT)
        reached = replay(_calibration(moved))
        errors = _robust_errors(reached)
        if errors.keys() != here.keys() or any(errors[m] > first[m] * (1 + GAIN) + 5e-4 for m in errors):
            continue
        if sum(np.log((errors[m] + LEAST_NOISE) / (here[m] + LEAST_NOISE)) for m in errors) < -1e-4:
            return moved, reached
    return None


def _trials(
    replay: Replay,
    before: Validation,
    line: Linearization,
    free: Sequence[int],
    parameters: np.ndarray,
    known: np.ndarray,
) -> tuple[dict[str, Trial], dict[str, float]]:
    """Every fifth of the requests, simulated with the parameters that the other four fifths give."""
    count = len(before.trace)
    fold = np.arange(count) % FOLDS
    if before.trace.arrival_s is not None:  # neighbours share their queue: fifths of the time
        fold[np.argsort(before.trace.arrival_s, kind="stable")] = np.arange(count) * FOLDS // count
    unseen = {metric: np.full(count, np.nan) for metric in before.measured}
    for number in range(min(FOLDS, count)):
        rows = known & np.tile(fold != number, len(_metrics(before)))
        step = _gauss_newton_step(line, free, parameters, rows, count)
        without = replay(_calibration(np.clip(parameters + step, -LIMIT, LIMIT)))
        for metric, errors in unseen.items():
            errors[fold == number] = without.relative(metric)[fold == number]
    trials = {}
    for metric, errors in unseen.items():
        both = (
            np.isfinite(errors)
            & np.isfinite(before.relative(metric))
            & (np.minimum(errors, before.relative(metric)) > -1)
        )
        if both.any():
            trials[metric] = Trial(before.relative(metric)[both], errors[both])
    return trials, {m: float(np.nanmean(np.abs(unseen[m]))) for m in trials if count > 1}


def with_provenance(fit: Fit, labels: Mapping[str, str]) -> Calibration:
    """The calibration with what it was made for and from, and its errors; ``labels`` as `run_header` has them."""
    before, after = fit.before.errors, fit.after.errors
    error = {
        metric: {
            "before": float(before[metric].mape or 0.0),
            "after": float(after[metric].mape or 0.0),
            **({"unseen": fit.unseen[metric]} if metric in fit.unseen else {}),
        }
        for metric in before
    }
    trace = fit.before.trace
    return msgspec.structs.replace(
        fit.calibration,
        model=labels["model"],
        gpu=labels["gpu"],
        engine=labels["engine_name"],
        version=labels["engine_version"],
        precision=labels["quantization"],
        measured=trace.source,
        requests=len(trace),
        error=error,
    )
